"""What the learner asks of an advantage.

Invariant: a group that teaches nothing (one trajectory, or all rewards equal) gets exactly 0 everywhere; the trainer
skips such groups before any compute. No torch here: a recipe is checked without it.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from untail.config import LossKind, Strict
from untail.registry import Registry
from untail.types import Group


class Advantage(ABC):
    """`loss` is the aggregation the method was published with: what `learn.loss` is where a recipe leaves it unset."""

    class Config(Strict):
        pass

    loss: ClassVar[LossKind]

    def __init__(self, config: Config):
        self.config = config

    @abstractmethod
    def compute(self, group: Group) -> list[float]:
        """One number per trajectory of `group`, in its order; it stands for all tokens of the trajectory."""


ADVANTAGES: Registry[Advantage] = Registry("advantage")


def deviations(rewards: list[float]) -> list[float]:
    """r_i - mean(r), and exactly 0 where all rewards are equal (their mean need not round to them)."""
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
