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

ImportPath = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


@REWARDS.register("function")
class Function(Reward):
    class Config(Strict):
        path: ImportPath

    config: Config
    needs = ()
    needs_system = True
    _function: Callable[[str, Prompt], Any]

    def prepare(self) -> None:
        self._function = find_function(self.config.path, self.where)

    def score(self, response: str, prompt: Prompt) -> float:
        return self._function(response, prompt)


def find_function(path: str, where: str) -> Callable[..., Any]:
    """What stands at an import path; a `ConfigError` about `where` if it cannot be called."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a file of the user's shadows nothing
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise ConfigError(f"{where}.path = {path!r} cannot be imported: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ConfigError(f"{where}.path = {path!r} is not a function but a {type(found).__name__}")
    return found
