"""Whether the response has a form: 1 if the whole of it matches a regular expression, else 0.

`.` matches line ends too. A pattern that takes for ever on some response costs that response its reward, no more.
"""

import re

from pydantic import field_validator

from untail.config import Strict
from untail.rewards.base import REWARDS, Reward
from untail.types import Prompt


@REWARDS.register("format")
class Format(Reward):
    class Config(Strict):
        pattern: str = r".*<answer>.*</answer>\s*"

        @field_validator("pattern")
        @classmethod
        def _compiles(cls, pattern: str) -> str:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            return pattern

    config: Config
    needs = ()

    def score(self, response: str, prompt: Prompt) -> float:
        return float(re.fullmatch(self.config.pattern, response, re.DOTALL) is not None)
