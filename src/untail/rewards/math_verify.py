"""Mathematical equality, by the math-verify package: 1/2 is 0.5, x+1 is 1+x.

Its own timeouts work by SIGALRM, which cannot interrupt C code; they are off, the scorer's limit holds instead.
"""

import functools
import logging
from typing import Any

from untail.errors import ConfigError
from untail.rewards.base import REWARDS, Reward
from untail.rewards.extract import truth
from untail.types import Prompt


@REWARDS.register("math_verify")
class MathVerify(Reward):
    def prepare(self) -> None:
        try:
            import math_verify
        except ImportError:
            raise ConfigError(
                f"{self.where} needs the math-verify package; install it with: pip install 'untail[tasks]'"
            ) from None
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
        math_verify.verify(_parse_truth("1"), math_verify.parse("1", parsing_timeout=None), timeout_seconds=None)

    def score(self, response: str, prompt: Prompt) -> float:
        from math_verify import parse, verify

        right = _parse_truth(truth(prompt.data["answer"]))
        return float(verify(right, parse(response, parsing_timeout=None), timeout_seconds=None))


@functools.lru_cache(maxsize=256)  # every answer of a group is compared with the same one
def _parse_truth(answer: str) -> list[Any]:
    from math_verify import parse

    parsed = parse(answer if "\\boxed" in answer else f"\\boxed{{{answer}}}", parsing_timeout=None)
    if not parsed:
        raise ValueError(f"math-verify cannot read the row's answer {answer[:80]!r}")
    return parsed
