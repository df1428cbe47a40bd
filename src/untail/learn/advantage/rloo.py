"""RLOO: A_i = r_i - mean of the other rewards of its group = n / (n - 1) (r_i - mean(r)); 0 where all are equal.

A baseline that does not contain one's own reward leaves the gradient unbiased as long as siblings are independent;
copies are not. A response is one action: its loss is the sum over its tokens, which here is divided by the constant
`learn.loss_length`.
"""

from typing import ClassVar

from untail.config import LossKind
from untail.learn.advantage.base import ADVANTAGES, Advantage, deviations
from untail.types import Group


@ADVANTAGES.register("rloo")
class Rloo(Advantage):
    loss: ClassVar[LossKind] = "constant"

    def compute(self, group: Group) -> list[float]:
        n = len(group.trajectories)
        return [x * n / (n - 1) if x else 0.0 for x in deviations(group.rewards)]
