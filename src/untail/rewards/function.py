"""A user's own function, by import path: `path = "package.module:function"`.

It is called in a worker as `function(response: str, prompt: Prompt)` and returns a number. Modules are found where the
training process finds them (its `sys.path`), then in the
current folder.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.errors import ConfigError
from untail.rewards.base import REWARDS, Reward
from untail.types import Prompt


@REWARDS.register("function")
class Function(Reward):
    class Config(Strict):
        path: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]

    config: Config
    needs = ()
    needs_system = True
    _function: Callable[[str, Prompt], Any]

    def prepare(self) -> None:
        module, _, name = self.config.path.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # last, so that a file of the user's shadows nothing
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:  # whatever the user's module raises while it is imported
            raise ConfigError(
                f"{self.where}.path = {self.config.path!r} cannot be imported: {type(error).__name__}: {error}"
            ) from None
        if not callable(found):
            raise ConfigError(
                f"{self.where}.path = {self.config.path!r} is not a function but a {type(found).__name__}"
            )
        self._function = found

    def score(self, response: str, prompt: Prompt) -> float:
        return self._function(response, prompt)
