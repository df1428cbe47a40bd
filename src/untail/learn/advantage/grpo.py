"""GRPO: A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the group; 0 where all rewards are equal.

std is that of a sample (divided by n - 1), as in TRL and verl. The 1e-6 keeps rewards that differ only by rounding from
becoming +-1.
"""

import math
from typing import ClassVar

from untail.config import LossKind
from untail.learn.advantage.base import ADVANTAGES, Advantage, deviations
from untail.types import Group


@ADVANTAGES.register("grpo")
class Grpo(Advantage):
    loss: ClassVar[LossKind] = "token"

    def compute(self, group: Group) -> list[float]:
        centred = deviations(group.rewards)
        if not any(centred):
            return centred
        std = math.sqrt(sum(x * x for x in centred) / (len(centred) - 1))
        return [x / (std + 1e-6) for x in centred]
