from fractions import Fraction

import pytest

from untail.errors import ConfigError
from untail.rewards.numeric import is_number, last_number

from .helpers import prompt, reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("there are 3 of 42", "42"),
        ("it costs $1,234.50 in all", "1234.5"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("1,2345", "2345"),
        ("one, 2, 3", "3"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("x=-5.", "-5"),
        ("20-2", "2"),
        ("10-20", "20"),
        ("- 5 apples", "5"),
        ("3/4 of a cup", "3/4"),
        (r"\frac{3}{4}", "3/4"),
        (r"-\dfrac{1}{2}", "1/2"),
        (r"\frac{-1}{2}", "-1/2"),
        (".5", "1/2"),
        ("18.", "18"),
        ("50%", "50"),
        ("1e-3", "1/1000"),
        ("2E3 metres", "2000"),
    ],
)
def test_last_number(text: str, number: str) -> None:
    assert last_number(text) == Fraction(number)


@pytest.mark.parametrize("text", ["", "no number", "5/0", "1e999999999", "9" * 5000, "1," + "000," * 5000 + "000"])
def test_what_cannot_be_read_is_none(text: str) -> None:
    assert last_number(text) is None


def test_is_number() -> None:
    assert all(map(is_number, ["42", "-3/4", " $1,000 ", "12.5%", "1e-3"]))
    assert not any(map(is_number, ["18 dollars", "x", "", "5/0", "1 2"]))


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<answer>18 dollars</answer> of 20", 1.0),
        (r"\boxed{18.0} and 7", 1.0),
        ("#### 18\n7 more lines", 1.0),
        ("first 7, then 18", 1.0),
        ("36/2", 1.0),
        ("18.0000001", 1.0),
        ("18.1", 0.0),
        ("<answer>none</answer> 18", 0.0),
        ("", 0.0),
    ],
)
def test_numeric(response: str, score: float) -> None:
    assert reward("numeric").score(response, prompt(answer="9 * 2 = <<9*2=18>>18\n#### 18")) == score


def test_large_integers_are_compared_exactly() -> None:
    assert reward("numeric").score("12345678901234567891", prompt(answer=12345678901234567890)) == 0.0


def test_tolerance() -> None:
    assert reward("numeric", tolerance=0.5).score("18.4", prompt(answer="18")) == 1.0
    with pytest.raises(ConfigError, match=r"task.reward.tolerance = -1"):
        reward("numeric", tolerance=-1)


def test_a_row_without_a_number_is_not_scored_silently() -> None:
    with pytest.raises(ValueError, match="'blue' is not a number"):
        reward("numeric").score("18", prompt(answer="blue"))
