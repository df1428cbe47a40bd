"""Whether it comes to an end or doubts itself for ever: 1 - (how often a word like "wait" stands) / `most`, at least 0;
None while there is none. After an answer was marked it is 1: whoever answers did not wait endlessly."""

import re
from typing import Annotated

from pydantic import Field

from untail.config import PositiveInt, Strict
from untail.rewards.extract import marked
from untail.rewards.partial.base import PARTIALS, Partial
from untail.types import Prompt


@PARTIALS.register("endless_wait")
class EndlessWait(Partial):
    class Config(Strict):
        words: Annotated[tuple[Annotated[str, Field(pattern=r"^\w+$")], ...], Field(min_length=1)] = ("wait", "hmm")
        most: PositiveInt = 24  # with so many it is hopeless

    config: Config

    def score(self, text: str, prompt: Prompt) -> float | None:
        words = "|".join(self.config.words)
        count = sum(1 for _ in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE))
        if not count:
            return None
        return 1.0 if marked(text) is not None else max(0.0, 1 - count / self.config.most)
