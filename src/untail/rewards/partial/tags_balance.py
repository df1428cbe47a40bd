"""Whether tags like <think> and <answer> can still balance: 1 if so, 0 once they cannot, None while there are none.

They cannot once one is closed that is not the last to be opened, or opened while it is open, or opened a second time.
"""

import re
from typing import Annotated

from pydantic import Field

from untail.config import Strict
from untail.rewards.partial.base import PARTIALS, Partial
from untail.types import Prompt


@PARTIALS.register("tags_balance")
class TagsBalance(Partial):
    class Config(Strict):
        tags: Annotated[tuple[Annotated[str, Field(pattern=r"^\w+$")], ...], Field(min_length=1)] = ("think", "answer")
        once: bool = True  # a pair stands once at most

    config: Config

    def score(self, text: str, prompt: Prompt) -> float | None:
        found = re.findall(rf"<(/?)({'|'.join(self.config.tags)})>", text)
        if not found:
            return None
        opened: list[str] = []
        seen: set[str] = set()
        for slash, tag in found:
            if slash:
                if not opened or opened.pop() != tag:
                    return 0.0
            elif tag in opened or (self.config.once and tag in seen):
                return 0.0
            else:
                opened.append(tag)
                seen.add(tag)
        return 1.0
