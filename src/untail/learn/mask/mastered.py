"""8.3, mastered tokens (UloRL's DMMPT): what the policy already does right and surely need not be taught again.

In a response with reward >= `reward` (1) whose mean entropy is < `entropy` (0.2), token t leaves the loss where
p_t >= `p` (0.99), with p_t and the entropies as the engine said when it sampled. Pushing such tokens further only takes
entropy out of the policy.
"""

from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat

from untail.config import NotNegative, Strict
from untail.learn import column
from untail.learn.mask.base import MASKS, Mask
from untail.types import Trajectory


@MASKS.register("mastered")
class Mastered(Mask):
    class Config(Strict):
        p: Annotated[float, Field(gt=0, le=1)] = 0.99
        entropy: NotNegative = 0.2
        reward: FiniteFloat = 1.0

    section = "8.3"
    needs_entropy = True
    needs_logprobs = True
    config: Config

    def keep(self, trajectory: Trajectory) -> np.ndarray:
        everything = np.ones(len(trajectory.tokens))
        ours = column.from_model(trajectory) > 0
        if trajectory.reward < self.config.reward or not ours.any():
            return everything
        if column.entropy(trajectory)[ours].mean() >= self.config.entropy:
            return everything
        return np.where(np.exp(column.policy_logprob(trajectory)) >= self.config.p, 0.0, everything)
