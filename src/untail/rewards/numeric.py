r"""The answer as a number.

The response's number is the last one in its <answer> tags, else in \boxed{}, else after ####, else in the whole text.
Read are integers, decimals, 1e-3, thousands separators (1,234 and 1{,}234), fractions (3/4 and \frac{3}{4}), signs
(also the typographic minus) and currency signs; units and percent signs are passed over. Compared exactly, as
fractions: 5000001 is not 5000000 for lack of float digits.
"""

import functools
import re
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from untail.config import Strict
from untail.rewards.base import REWARDS, Reward
from untail.rewards.extract import marked, truth
from untail.types import Prompt

LONGEST_NUMBER = 1000  # characters; longer ones are noise, and Python's int() is quadratic in them
LARGEST_EXPONENT = 400

_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([-−]?\d[\d.,]*)\s*\}\s*\{\s*(\d[\d.,]*)\s*\}")
_SEPARATOR_NOISE = re.compile(r"\{,\}|\\[,!]|(?<=\d)[\u00a0\u202f](?=\d{3})")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(  # a minus after a word, a digit or a bracket is a subtraction or a dash, not a sign
    rf"(?:(?<![\w.)\]}}])[-−])?[$€£]?(?P<top>{_DIGITS})(?P<exponent>[eE][-+]?\d+)?(?:\s?/\s?(?P<bottom>{_DIGITS}))?"
)


@REWARDS.register("numeric")
class Numeric(Reward):
    class Config(Strict):
        tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = (
            1e-6  # the largest absolute difference that is right
        )

    config: Config

    def score(self, response: str, prompt: Prompt) -> float:
        right = last_number(truth(prompt.data["answer"]))
        if right is None:
            raise ValueError(f"the row's answer {str(prompt.data['answer'])[:80]!r} is not a number")
        answer = marked(response)
        given = last_number(response if answer is None else answer)
        return float(given is not None and abs(given - right) <= Fraction(self.config.tolerance))


def last_number(text: str) -> Fraction | None:
    """The last number in the text, or None if there is none that can be read."""
    text = _LATEX_FRACTION.sub(r" \1/\2 ", _SEPARATOR_NOISE.sub(_separator, text))
    last = functools.reduce(lambda _, match: match, _NUMBER.finditer(text), None)
    return None if last is None or len(last[0]) > LONGEST_NUMBER else _read(last)


def is_number(text: str) -> bool:
    """Whether the text is nothing but a number, give or take a currency or percent sign."""
    match = _NUMBER.fullmatch(text.strip().rstrip("%").rstrip())
    return match is not None and len(match[0]) <= LONGEST_NUMBER and _read(match) is not None


def _separator(noise: re.Match[str]) -> str:
    return "," if noise[0] == "{,}" else ""


def _read(number: re.Match[str]) -> Fraction | None:
    top = Fraction(number["top"].replace(",", ""))
    if number["exponent"]:
        exponent = int(number["exponent"][1:])
        if abs(exponent) > LARGEST_EXPONENT:  # a power of ten with a million digits is an attack, not an answer
            return None
        top *= Fraction(10) ** exponent
    if number["bottom"]:
        bottom = Fraction(number["bottom"].replace(",", ""))
        if bottom == 0:
            return None
        top /= bottom
    return -top if number[0][0] in "-−" else top
