"""2.6, length buckets: short / medium / long by the tercile of the predicted length.

With half of the slots as the base, the short ones may take the base x 2, the medium ones the base and the long ones the
base x 0.5. Long groups start first and side by side, so that they do not each prolong a step of their own. A long
prompt whose reward was 0 three times running gets a budget of max(0.5 x predicted, floor). An unknown length is medium.

Until the thirds can be told apart nobody has a lane: in the first epoch most prompts are predicted to be as long as
their task's median, and a lane for all of them would leave half of the slots empty.
"""

from typing import Any, Literal

from untail.config import PositiveFloat, PositiveInt, Strict
from untail.errors import ConfigError
from untail.history.predictor import Prediction
from untail.rollout.admit.shared import PerStep, PositiveShare, is_failing
from untail.rollout.live import GroupPlan, Member, Route
from untail.rollout.points import MECHANISMS, Admit, Lane, Mechanism, View


@MECHANISMS.register("buckets")
class Buckets(Mechanism, Admit, Lane):
    sections = "2.6"

    class Config(Strict):
        base: PositiveShare = 0.5  # of all slots
        short: PositiveFloat = 2.0  # times the base
        long: PositiveFloat = 0.5
        failing_streak: PositiveInt = 3
        failing_budget: PositiveShare = 0.5  # of the predicted length
        floor: PositiveShare = 1 / 16  # of the longest response

    def __init__(self, config: Any):
        super().__init__(config)
        self.terciles = PerStep(_terciles)

    def check(self, group: int, budget: int) -> None:
        base = self.config.base
        for field, factor in (("short", self.config.short), ("long", self.config.long)):
            if base * factor > 1:
                raise ConfigError(
                    f"mechanisms.buckets.{field} = {factor} times mechanisms.buckets.base = {base} is more than all "
                    f"slots; set it to at most {1 / base:g}"
                )
        if self.config.long > self.config.short:
            raise ConfigError(
                f"mechanisms.buckets.long = {self.config.long} exceeds mechanisms.buckets.short = {self.config.short}: "
                "long responses would have more slots than short ones; lower it"
            )

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        if self._bucket(plan.predicted, view) != "long":
            return plan
        plan.priority = view.budget + 1.0  # above any length, by which others may order
        if is_failing(plan.prompt, view, self.config.failing_streak):
            budget = max(self.config.failing_budget * plan.predicted.mean, self.config.floor * view.budget)
            plan.budget = min(plan.budget, max(1, round(budget)))
        return plan

    def route(self, member: Member, view: View) -> Route | None:
        low, high = self.terciles.at(view)
        if low == high:
            return None
        bucket = self._bucket(member.group.plan.predicted, view)
        factor = {"short": self.config.short, "medium": 1.0, "long": self.config.long}[bucket]
        return Route(bucket, min(1.0, self.config.base * factor))

    def _bucket(self, predicted: Prediction, view: View) -> Literal["short", "medium", "long"]:
        low, high = self.terciles.at(view)
        if predicted.source == "unknown" or low == high or low <= predicted.mean <= high:
            return "medium"
        return "short" if predicted.mean < low else "long"


def _terciles(view: View) -> tuple[float, float]:
    """The shortest and the longest predicted length of the middle third; equal while there is nothing to tell apart."""
    predictions = (view.predictor.predict(prompt) for prompt in view.prompts)
    lengths = sorted(p.mean for p in predictions if p.source != "unknown")
    third = len(lengths) // 3
    return (lengths[third], lengths[-1 - third]) if third else (0.0, 0.0)
