"""A user's own function, by import path: `path = "package.module:function"`, called in a worker as
`function(text: str, prompt: Prompt)`; it returns a number, or None where it cannot tell. It may ask a reward model."""

from collections.abc import Callable
from typing import Any

from untail.config import Strict
from untail.rewards.function import ImportPath, find_function
from untail.rewards.partial.base import PARTIALS, Partial
from untail.types import Prompt


@PARTIALS.register("function")
class Function(Partial):
    class Config(Strict):
        path: ImportPath

    config: Config
    needs_system = True
    _function: Callable[[str, Prompt], Any]

    def prepare(self) -> None:
        self._function = find_function(self.config.path, self.where)

    def score(self, text: str, prompt: Prompt) -> float | None:
        return self._function(text, prompt)
