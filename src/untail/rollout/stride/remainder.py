"""3.3b, elastic segments by the predicted remainder: next = clamp(1.2 (L_pred - len), 64, cap).

Never cut when the predicted remainder is at most 1/4 of the stride: a boundary that comes that close to the end is
passed in place. That stride is the one that has just ended; the predictor says what remains once the estimate is
outlived. Where nothing is known, the first stride is cap / 4. Lengths scale with the budget.
"""

import math
from typing import Annotated

from pydantic import Field

from untail.config import NotNegative, PositiveFloat, PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Mechanism, Stride, Strider, View
from untail.rollout.stride.scale import refuse_over_budget, scaled


@MECHANISMS.register("remainder")
class Remainder(Mechanism, Strider):
    sections = "3.3b"

    class Config(Strict):
        margin: PositiveFloat = 1.2
        floor: PositiveInt = 64
        cap: PositiveInt = 4096
        near_end: NotNegative = 0.25  # of the stride: a remainder up to this is not cut off
        unknown: Annotated[float, Field(gt=0, le=1)] = 0.25  # of the cap: the first stride where nothing is known

    config: Config

    def check(self, group: int, budget: int) -> None:
        if self.config.floor > self.config.cap:
            raise ConfigError(
                f"mechanisms.remainder.floor = {self.config.floor} must not exceed mechanisms.remainder.cap = "
                f"{self.config.cap}; lower it"
            )
        refuse_over_budget("mechanisms.remainder.cap", self.config.cap, budget)

    def stride(self, member: Member, view: View) -> Stride:
        prompt, siblings = member.group.plan.prompt, member.group.finished_lengths
        cap = scaled(self.config.cap, view.budget)
        if member.is_new and view.predictor.predict(prompt, siblings).source == "unknown":
            return Stride(max(1, round(self.config.unknown * cap)))
        remaining = view.predictor.remaining(prompt, member.length, siblings)
        floor = scaled(self.config.floor, view.budget)
        tokens = math.ceil(min(max(self.config.margin * remaining, floor), cap))
        return Stride(tokens, in_place=remaining <= self.config.near_end * member.stride)
