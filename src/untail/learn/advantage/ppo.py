"""PPO: A_t by generalised advantage estimation (gae.py) from a critic's values, token by token.

`whiten`: over all tokens of the batch, (A - mean(A)) / (std(A) + 1e-8). A group is nothing to PPO but its trajectories:
one whose rewards are all equal teaches as well.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from untail.config import LossKind, Strict
from untail.learn.advantage.base import ADVANTAGES, TokenAdvantage
from untail.learn.gae import Estimates, gae
from untail.types import Group

Share = Annotated[float, Field(ge=0, le=1)]


@ADVANTAGES.register("ppo")
class Ppo(TokenAdvantage):
    class Config(Strict):
        gamma: Share = 1.0
        lam: Share = 1.0
        whiten: bool = True

    loss: ClassVar[LossKind] = "token"
    needs_values: ClassVar[bool] = True
    config: Config

    def per_token(self, group: Group, estimates: Estimates) -> list[np.ndarray]:
        columns = []
        for trajectory in group.trajectories:
            estimate, advantage_N = estimates[trajectory.id], np.zeros(len(trajectory.tokens))
            own = estimate.tokens(trajectory)
            ends = (estimate.reward, estimate.bootstrap)
            advantage_N[own] = gae(estimate.value_N[own], *ends, self.config.gamma, self.config.lam)
            columns.append(advantage_N)
        return columns

    def over_batch(self, advantages: list[np.ndarray], in_loss: list[np.ndarray]) -> list[np.ndarray]:
        tokens = np.concatenate([a[used] for a, used in zip(advantages, in_loss, strict=True)] or [np.empty(0)])
        if not self.config.whiten or len(tokens) < 2:
            return advantages
        return [
            np.where(used, (a - tokens.mean()) / (tokens.std() + 1e-8), 0.0)
            for a, used in zip(advantages, in_loss, strict=True)
        ]
