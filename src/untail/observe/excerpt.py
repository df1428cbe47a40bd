"""How a text begins or ends: so much of it goes into the events, enough to know it again."""

LONGEST = 160  # characters


def beginning(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def ending(text: str) -> str:
    return text if len(text) <= LONGEST else "…" + text[1 - LONGEST :]
