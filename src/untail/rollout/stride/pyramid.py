"""3.3c, inverted pyramid: the first stride is 4096, every other 1024.

A boundary is passed in place while the largest p(eos) over the last 16 tokens is > 0.02: it is about to end by itself.
Strides scale with the budget.
"""

from typing import Annotated

from pydantic import Field

from untail.config import PositiveInt, Strict
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Mechanism, Stride, Strider, View
from untail.rollout.stride.scale import refuse_over_budget, scaled


@MECHANISMS.register("pyramid")
class Pyramid(Mechanism, Strider):
    sections = "3.3c"

    class Config(Strict):
        first: PositiveInt = 4096
        then: PositiveInt = 1024
        window: PositiveInt = 16
        p_eos: Annotated[float, Field(ge=0, le=1)] = 0.02

    config: Config

    def check(self, group: int, budget: int) -> None:
        refuse_over_budget("mechanisms.pyramid.first", self.config.first, budget)
        refuse_over_budget("mechanisms.pyramid.then", self.config.then, budget)

    def stride(self, member: Member, view: View) -> Stride:
        if member.is_new:
            return Stride(scaled(self.config.first, view.budget))
        ends_soon = max(member.trajectory.p_eos[-self.config.window :]) > self.config.p_eos
        return Stride(scaled(self.config.then, view.budget), in_place=ends_soon)
