"""Dr. GRPO: A_i = r_i - mean(r) over the group, without the std, which favours prompts that are too easy or too hard.

Its other half is in the loss: "constant" divides by a fixed number of tokens (`learn.loss_length`) instead of the
response's own length, which would let long wrong answers off lightly. This class names that loss as its own, and
`sample.normalise` carries it out.
"""

from typing import ClassVar

from untail.config import LossKind
from untail.learn.advantage.base import ADVANTAGES, Advantage, deviations
from untail.types import Group


@ADVANTAGES.register("dr_grpo")
class DrGrpo(Advantage):
    loss: ClassVar[LossKind] = "constant"

    def compute(self, group: Group) -> list[float]:
        return deviations(group.rewards)
