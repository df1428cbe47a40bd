"""3.2, fixed segments (UloRL): stride = longest response / number of segments, rounded up."""

import math

from untail.config import PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Mechanism, Stride, Strider, View


@MECHANISMS.register("fixed")
class Fixed(Mechanism, Strider):
    sections = "3.2"

    class Config(Strict):
        segments: PositiveInt = 4

    config: Config

    def check(self, group: int, budget: int) -> None:
        if self.config.segments > budget:
            raise ConfigError(
                f"mechanisms.fixed.segments = {self.config.segments} is more than the longest response has tokens, "
                f"rollout.max_tokens = {budget}; set it to at most {budget}"
            )

    def stride(self, member: Member, view: View) -> Stride:
        return Stride(math.ceil(view.budget / self.config.segments))
