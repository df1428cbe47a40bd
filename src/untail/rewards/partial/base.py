"""What a partial score is: a number for the text so far, or None where it cannot tell.

Invariant: 0 says that the response can no longer succeed, 1 that nothing speaks against it. As with a reward, `score`
alone has no limit of time or memory and may raise; `scorer.Scorer` makes that harmless.
"""

from abc import ABC, abstractmethod
from typing import Any

from untail.config import Strict
from untail.registry import Registry
from untail.types import Prompt


class Partial(ABC):
    class Config(Strict):
        pass

    needs_system: bool = False
    """Whether scoring starts processes, writes files or connects. If not, its worker gives up the right to."""

    def __init__(self, config: Any, where: str):
        self.config = config
        self.where = where

    def prepare(self) -> None:  # noqa: B027 (most have nothing to prepare)
        """Import and build what `score` needs, before the memory limit counts; a `ConfigError` if it is not there."""

    @abstractmethod
    def score(self, text: str, prompt: Prompt) -> float | None:
        """`text` is the response so far, cut anywhere."""


PARTIALS: Registry[Partial] = Registry("partial score")


def build_partial(table: dict[str, Any], where: str) -> Partial:
    return PARTIALS.build(table, where, where)
