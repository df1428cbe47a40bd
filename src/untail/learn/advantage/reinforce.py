"""REINFORCE: A_i = r_i - b with a constant baseline b.

It compares nobody with anybody, so it is the one advantage for which credit `weights` is unbiased; it also learns from
groups in which all rewards are equal. As for RLOO a response is one action.
"""

from typing import ClassVar

from pydantic import FiniteFloat

from untail.config import LossKind, Strict
from untail.learn.advantage.base import ADVANTAGES, Advantage
from untail.types import Group


@ADVANTAGES.register("reinforce")
class Reinforce(Advantage):
    class Config(Strict):
        baseline: FiniteFloat = 0.0

    loss: ClassVar[LossKind] = "constant"
    config: Config

    def compute(self, group: Group) -> list[float]:
        return [reward - self.config.baseline for reward in group.rewards]
