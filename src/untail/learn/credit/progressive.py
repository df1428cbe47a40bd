"""Progressive: a token before a fork weighs `before` (0.25), in the original and in the copies alike; after it, 1."""

from typing import Annotated

import numpy as np
from pydantic import Field

from untail.config import Strict
from untail.learn.credit.base import CREDITS, Credit
from untail.types import Group


@CREDITS.register("progressive")
class Progressive(Credit):
    class Config(Strict):
        before: Annotated[float, Field(ge=0, le=1)] = 0.25

    config: Config

    def weigh(self, group: Group) -> list[np.ndarray]:
        weights = []
        for trajectory in group.trajectories:
            forks = [other.forked_at for other in group.trajectories if other.parent == trajectory.id]
            weight = np.ones(len(trajectory.tokens))
            weight[: max([trajectory.forked_at, *forks])] = self.config.before
            weights.append(weight)
        return weights
