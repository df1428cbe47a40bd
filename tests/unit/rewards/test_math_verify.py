import builtins
from typing import Any

import pytest

from untail.errors import ConfigError

from .helpers import prompt, reward


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (r"so \boxed{0.5}", "1/2", 1.0),
        (r"the answer is $\frac{2}{4}$", r"\frac{1}{2}", 1.0),
        ("$1+x$", "x+1", 1.0),
        (r"\boxed{72}", "worked\n#### 72", 1.0),
        (r"\boxed{71}", "72", 0.0),
        ("I do not know", "72", 0.0),
    ],
)
def test_math_verify(response: str, answer: str, score: float) -> None:
    assert reward("math_verify").score(response, prompt(answer=answer)) == score


def test_an_answer_that_cannot_be_read_is_not_scored_silently() -> None:
    with pytest.raises(ValueError, match="cannot read the row's answer"):
        reward("math_verify").score("1", prompt(answer=""))


def test_without_the_package_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "math_verify":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'untail\[tasks\]'"):
        reward("math_verify")
