"""6.2, over-sampling (verl's PR 2929): start N / (1 - rate) requests, close at N finished.

`rest = "drop"` cancels the others in the engine at once: a group closes with its finished members if there are two or
more. `rest = "defer"` closes at a batch of whole groups and keeps the partials (APRIL).
"""

import math
from bisect import bisect
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from untail.config import Strict
from untail.rollout.points import MECHANISMS, Finish, Mechanism, View

Rate = Annotated[float, Field(ge=0, lt=1)]


@MECHANISMS.register("oversample")
class Oversample(Mechanism, Finish):
    sections = "6.2"

    class Config(Strict):
        rate: Rate = 0.2
        schedule: tuple[tuple[int, Rate], ...] = ()  # (step, rate) pairs, linear between them; wins over `rate`
        # The rate grows with the share of the full budget that groups are given: those that were last under way, for a
        # step is sized before it has any.
        follow_curriculum: bool = False
        rest: Literal["drop", "defer"] = "drop"

        @model_validator(mode="after")
        def _schedule_rises(self) -> "Oversample.Config":
            steps = [step for step, _ in self.schedule]
            if steps != sorted(set(steps)):
                raise ValueError(
                    f"mechanisms.oversample.schedule has the steps {steps}; give each once, in rising order"
                )
            return self

    def __init__(self, config: Config):
        super().__init__(config)
        self.rest = "close" if config.rest == "drop" else "defer"
        self.contradicts = ("defer",) if config.rest == "drop" else ()  # it was asked to drop them
        self._budget_share = 1.0

    def starts(self, view: View) -> int:
        groups = math.ceil(view.wanted / (1 - self._rate(view)))
        if self.rest == "defer":
            return groups - view.open // view.group
        return groups - len(view.groups) - len(view.ready)

    def closes_at(self, view: View) -> float:
        self._look(view)
        enough = (
            view.trainable() >= view.wanted * view.group if self.rest == "close" else len(view.ready) >= view.wanted
        )
        return view.now if enough else math.inf

    def _rate(self, view: View) -> float:
        rate = _interpolate(self.config.schedule, view.step) if self.config.schedule else self.config.rate
        self._look(view)
        return rate * self._budget_share if self.config.follow_curriculum else rate

    def _look(self, view: View) -> None:
        if self.config.follow_curriculum and view.groups:
            self._budget_share = fmean(group.plan.budget for group in view.groups) / view.budget

    def state(self) -> dict[str, Any]:
        return {"budget_share": self._budget_share}

    def restore(self, state: dict[str, Any]) -> None:
        self._budget_share = state["budget_share"]


def _interpolate(points: Sequence[tuple[int, float]], step: int) -> float:
    after = bisect([at for at, _ in points], step)
    if after in (0, len(points)):
        return points[max(0, after - 1)][1]
    (left, low), (right, high) = points[after - 1 : after + 1]
    return low + (high - low) * (step - left) / (right - left)
