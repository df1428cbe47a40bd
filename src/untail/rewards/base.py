"""What a reward is: a number for a response.

Invariant: building a reward checks its table and is cheap; `prepare` imports what scoring needs; `score` alone has no
limit of time or memory and may raise or return nonsense. `scorer.Scorer` is what makes all of that harmless.
"""

from abc import ABC, abstractmethod
from typing import Any

from untail.config import Strict
from untail.registry import Registry
from untail.types import Prompt


class Reward(ABC):
    class Config(Strict):
        pass

    needs: tuple[str, ...] = ("answer",)
    """The keys of `Prompt.data` without which a row cannot be scored."""

    truths: tuple[str, ...] = ("answer",)
    """The keys of `Prompt.data` on which two rows with the same prompt have to agree."""

    needs_system: bool = False
    """Whether scoring starts processes, writes files or connects. If not, its worker gives up the right to."""

    def __init__(self, config: Any, where: str):
        self.config = config
        self.where = where

    def prepare(self) -> None:  # noqa: B027 (most rewards have nothing to prepare)
        """Import and build what `score` needs, before the memory limit counts; a `ConfigError` if it is not there."""

    @abstractmethod
    def score(self, response: str, prompt: Prompt) -> float:
        """How good the response is; by custom between 0 and 1."""


REWARDS: Registry[Reward] = Registry("reward")


def build_reward(table: dict[str, Any], where: str) -> Reward:
    return REWARDS.build(table, where, where)
