import pytest

from .helpers import prompt, reward


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("thinking\n<answer>New  York</answer>", "New York", 1.0),
        ("thinking\nNew York", "New York", 1.0),
        (r"\boxed{x+1}", "x+1", 1.0),
        ("new york", "New York", 0.0),
        ("", "New York", 0.0),
        ("#### 42", "worked\n#### 42", 1.0),
        ("42", 42, 1.0),
    ],
)
def test_exact(response: str, answer: object, score: float) -> None:
    assert reward("exact").score(response, prompt(answer=answer)) == score
