"""6.3, deadline: close 1.5 x t80 after the start, t80 being when 80 % had finished."""

import math
from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.rollout.points import MECHANISMS, Finish, Mechanism, View


@MECHANISMS.register("deadline")
class Deadline(Mechanism, Finish):
    sections = "6.3"
    rest = "close"

    class Config(Strict):
        share: Annotated[float, Field(gt=0, lt=1)] = 0.8
        factor: Annotated[float, Field(ge=1)] = 1.5

    def __init__(self, config: Any):
        super().__init__(config)
        self._reached: tuple[int, float] = (0, math.inf)  # in which step, and after how many seconds

    def closes_at(self, view: View) -> float:
        if self._reached[0] != view.step:
            if not view.started or view.ended < self.config.share * view.started:
                return math.inf
            self._reached = (view.step, view.now - view.began)
        return view.began + self.config.factor * self._reached[1]
