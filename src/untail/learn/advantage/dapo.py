"""DAPO: GRPO's advantage on rewards with an overlong penalty, a mean over all tokens, and a clip that is wider above.

With L the longest response that the recipe allows, c = `overlong` L and l_i the model tokens of response i:
  r'_i = r_i + min(0, (L - c - l_i) / c):  0 up to L - c, then down in a straight line to -1 at L
  A_i = (r'_i - mean(r')) / (std(r') + 1e-6);  0 where all r' are equal
The penalty is of the advantage alone: reported rewards are without it. The method's other part, dynamic sampling, is
the mechanism `dynamic`.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from untail.config import LossKind, Strict
from untail.learn.advantage.base import ADVANTAGES, Advantage, standardised
from untail.types import Group, Trajectory


@ADVANTAGES.register("dapo")
class Dapo(Advantage):
    class Config(Strict):
        overlong: Annotated[float, Field(ge=0, le=1)] = 0.2  # the last part of the budget, which is penalised

    loss: ClassVar[LossKind] = "token"
    clip: ClassVar[tuple[float, float]] = (0.2, 0.28)
    config: Config

    def compute(self, group: Group) -> list[float]:
        return standardised([t.reward + self._penalty(t) for t in group.trajectories])

    def _penalty(self, trajectory: Trajectory) -> float:
        margin = self.config.overlong * self.longest
        over = sum(trajectory.from_model) - (self.longest - margin)
        return -over / margin if margin > 0 and over > 0 else 0.0
