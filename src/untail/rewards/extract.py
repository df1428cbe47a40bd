"""Where in a text the answer stands.

Invariant: every function is linear in the length of the text, whatever the text is; none raises.
"""


def tagged(text: str) -> str | None:
    """What stands in the last closed pair of <answer> tags."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    return text[start + len("<answer>") : end].strip() if start >= 0 else None


def boxed(text: str) -> str | None:
    r"""What stands in the braces of the last \boxed{...}."""
    marker = text.rfind("\\boxed{")
    if marker < 0:
        return None
    start = marker + len("\\boxed{")
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position].strip()
    return None


def hashed(text: str) -> str | None:
    """What follows the last ####, to the end of that line (GSM8K's form)."""
    _, marker, rest = text.rpartition("####")
    return rest.strip().partition("\n")[0].strip() if marker else None


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return text.rstrip().rpartition("\n")[2].strip()


def marked(text: str) -> str | None:
    r"""The answer as a response marks it: <answer> tags, else \boxed{}, else ####; None if it is not marked."""
    for find in (tagged, boxed, hashed):
        answer = find(text)
        if answer is not None:
            return answer
    return None


def truth(answer: object) -> str:
    """A row's answer as text; of a worked solution that ends in `#### 42` only the 42."""
    text = str(answer)
    return hashed(text) or text.strip()
