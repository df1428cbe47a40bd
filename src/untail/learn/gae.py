"""Generalised advantage estimation over the part of a trajectory that is trained now; no torch.

With V_t the critic's value of the state that token t was sampled in, over the model's own tokens t = 0 .. M - 1:
  delta_t = gamma V_(t+1) - V_t            and for the last  delta = reward + gamma bootstrap - V
  A_t = delta_t + gamma lam A_(t+1)        (A_M = 0)
  R_t = A_t + V_t                          what the critic learns
A trajectory that ended has its reward and bootstrap 0; one that goes on has reward 0 and a bootstrap: what the critic
expects of the rest. gamma counts tokens. An environment's reply is no step of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from untail.types import Trajectory


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a critic says of a trajectory's response tokens [begin, end). `value_N` is 0 where nobody asked."""

    begin: int
    end: int
    value_N: np.ndarray
    reward: float
    bootstrap: float = 0.0

    def tokens(self, trajectory: Trajectory) -> np.ndarray:
        """Which of the trajectory's tokens are trained now."""
        return self.begin + np.flatnonzero(trajectory.from_model[self.begin : self.end])


Estimates = Mapping[str, Estimate]
"""By the trajectory's id."""


def gae(value_M: np.ndarray, reward: float, bootstrap: float, gamma: float, lam: float) -> np.ndarray:
    """A_t, [M]."""
    advantage_M = np.zeros(len(value_M))
    after, advantage = reward + gamma * bootstrap, 0.0  # of the last token: what it leads to
    for t in range(len(value_M) - 1, -1, -1):
        advantage = after - value_M[t] + gamma * lam * advantage
        advantage_M[t] = advantage
        after = gamma * value_M[t]
    return advantage_M


def final_return(trajectory: Trajectory, positions: np.ndarray, gamma: float) -> np.ndarray:
    """The reward as seen from before each of these response tokens: discounted by the steps from there to the last."""
    written = np.cumsum([0, *trajectory.from_model])
    steps = np.maximum(written[-1] - written[positions] - 1, 0)
    return gamma**steps * trajectory.reward
