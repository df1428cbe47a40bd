"""What the learner asks of a mask.

Invariant: a mask only takes away. What it takes out keeps its place in the means of the loss (`sample.normalise`), so
that the tokens that stay weigh neither more nor less than they did. No torch here: a recipe is checked without it.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from untail.config import Strict
from untail.registry import Registry
from untail.types import Trajectory


class Mask(ABC):
    class Config(Strict):
        pass

    section: ClassVar[str]  # of the list of mechanisms
    needs_entropy: ClassVar[bool] = False  # refuses a backend that cannot tell a token's entropy
    needs_logprobs: ClassVar[bool] = False  # refuses one that cannot tell a token's log-prob

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    def keep(self, trajectory: Trajectory) -> np.ndarray:
        """For each response token 1, or 0 where it leaves the loss."""


MASKS: Registry[Mask] = Registry("mask")
