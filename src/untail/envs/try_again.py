"""The model may try again for as long as its answer is wrong and it has turns left.

With a latency it imitates a heavy-tailed tool: `latency_s` x exp(`latency_sigma` x z) seconds, z standard normal.
"""

import math
from statistics import NormalDist

from untail.config import NotNegative
from untail.envs.base import ENVIRONMENTS, Environment, Turn


@ENVIRONMENTS.register("try_again")
class TryAgain(Environment):
    class Config(Environment.Config):
        text: str = "wrong, try again"
        right: float = 1.0  # the least score of a right answer
        latency_s: NotNegative = 0.0  # median
        latency_sigma: NotNegative = 0.0  # of its logarithm

    config: Config

    async def reply(self, turn: Turn) -> str | None:
        return None if await turn.score() >= self.config.right else self.config.text

    def latency_s(self, turn: Turn) -> float:
        uniform = ((turn.stream >> 11) + 0.5) / 2**52  # from 0 to 1, both excluded
        return self.config.latency_s * math.exp(self.config.latency_sigma * NormalDist().inv_cdf(uniform))
