"""What the learner asks of an advantage.

Invariant: what teaches nothing gets exactly 0. For a method that compares siblings that is a group of one, or one whose
rewards are all equal; the trainer skips such groups before any compute. No torch here: a recipe is checked without it.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from untail.config import LossKind, Strict
from untail.learn.gae import Estimates
from untail.registry import Registry
from untail.types import Group


class TokenAdvantage(ABC):
    """`loss` and `clip` are the aggregation and the clip the method was published with: what `learn.loss`,
    `learn.clip_low` and `learn.clip_high` are where a recipe leaves them unset. `longest` is the longest response that
    the recipe allows. With `needs_values` a critic is trained, and what it says is in `estimates`."""

    class Config(Strict):
        pass

    loss: ClassVar[LossKind]
    needs_values: ClassVar[bool] = False
    clip: ClassVar[tuple[float, float]] = (0.2, 0.2)

    def __init__(self, config: Any, longest: int):
        self.config = config
        self.longest = longest

    @abstractmethod
    def per_token(self, group: Group, estimates: Estimates) -> list[np.ndarray]:
        """A number for every response token of every trajectory of `group`, in its order."""

    def over_batch(self, advantages: list[np.ndarray], in_loss: list[np.ndarray]) -> list[np.ndarray]:
        """The same once all groups of a batch have theirs; `in_loss` are masks."""
        return advantages


class Advantage(TokenAdvantage):
    """One that is the same for all tokens of a trajectory."""

    @abstractmethod
    def compute(self, group: Group) -> list[float]:
        """One number per trajectory of `group`, in its order; it stands for all tokens of the trajectory."""

    def per_token(self, group: Group, estimates: Estimates) -> list[np.ndarray]:
        numbers = zip(group.trajectories, self.compute(group), strict=True)
        return [np.full(len(trajectory.tokens), number) for trajectory, number in numbers]


ADVANTAGES: Registry[TokenAdvantage] = Registry("advantage")


def deviations(rewards: list[float]) -> list[float]:
    """r_i - mean(r), and exactly 0 where all rewards are equal (their mean need not round to them)."""
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def standardised(rewards: list[float]) -> list[float]:
    """(r_i - mean(r)) / (std(r) + 1e-6), and exactly 0 where all rewards are equal.

    std is that of a sample (divided by n - 1), as in TRL and verl. The 1e-6 keeps rewards that differ only by rounding
    from becoming +-1.
    """
    centred = deviations(rewards)
    if not any(centred):
        return centred
    std = math.sqrt(sum(x * x for x in centred) / (len(centred) - 1))
    return [x / (std + 1e-6) for x in centred]
