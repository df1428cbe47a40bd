"""What the learner asks of a credit rule: what tokens weigh that several trajectories of a group share.

Invariant: without copies and without random pruning every rule gives every token the weight 1. Copies and originals
both count in the group's statistics. No torch here: a recipe is checked without it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from untail.config import Strict
from untail.registry import Registry
from untail.types import Group, Trajectory


class Credit(ABC):
    class Config(Strict):
        pass

    needs_survival: ClassVar[bool] = False  # the chance with which every survivor was spared
    corrects_sampling: ClassVar[bool] = False  # pi_v / mu is in the weight: for importance, mu is then pi_v
    needs_logprobs: ClassVar[bool] = False  # refuses a backend that cannot tell a token's log-prob

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def weigh(self, group: Group) -> list[np.ndarray]:
        """A factor for every token of every trajectory of `group`, masked ones included, in its order."""

    def counts(self, trajectory: Trajectory) -> float:
        """What a trajectory counts for where the loss is a mean over trajectories."""
        return 1.0


CREDITS: Registry[Credit] = Registry("credit")
