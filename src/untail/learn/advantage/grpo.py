"""GRPO: A_i = (r_i - mean(r)) / (std(r) + 1e-6) over the group; 0 where all rewards are equal."""

from typing import ClassVar

from untail.config import LossKind
from untail.learn.advantage.base import ADVANTAGES, Advantage, standardised
from untail.types import Group


@ADVANTAGES.register("grpo")
class Grpo(Advantage):
    loss: ClassVar[LossKind] = "token"

    def compute(self, group: Group) -> list[float]:
        return standardised(group.rewards)
