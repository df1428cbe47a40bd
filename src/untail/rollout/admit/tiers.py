"""2.4, tiered token budgets: who teaches much may write much.

With p = (successes + 1) / (n + 2) and n >= 8 known rewards, in this order:

    p > 0.95: not asked.  p < 0.05: a quarter of the budget.
    gain p (1 - p)^2 in the top third of all prompts that have so many rewards: the full budget; below: a quarter.

With n < 8: the full budget. 5 % of those that are skipped or cut are asked with the full budget all the same, so that a
prompt that changed comes back.
"""

from typing import Any

from pydantic import model_validator

from untail.config import PositiveInt, Strict
from untail.rollout.admit.shared import PerStep, PositiveShare, Share, gain, success_rate
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View


@MECHANISMS.register("tiers")
class Tiers(Mechanism, Admit):
    sections = "2.4"

    class Config(Strict):
        least: PositiveInt = 8  # known rewards before a prompt is judged
        mastered: Share = 0.95
        hopeless: Share = 0.05
        full: PositiveShare = 1 / 3  # of the prompts, by gain
        cut: PositiveShare = 0.25  # of the budget
        retest: Share = 0.05

        @model_validator(mode="after")
        def _tiers_are_apart(self) -> "Tiers.Config":
            if self.hopeless > self.mastered:
                raise ValueError(
                    f"mechanisms.tiers.hopeless = {self.hopeless} exceeds mechanisms.tiers.mastered = {self.mastered}; "
                    "lower it"
                )
            return self

    def __init__(self, config: Any):
        super().__init__(config)
        self.threshold = PerStep(self._threshold)

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        rate = success_rate(plan.prompt, view, self.config.least)
        if rate is None or view.rng("tiers", plan.prompt.id).random() < self.config.retest:
            return plan
        if rate > self.config.mastered:
            return None
        if rate < self.config.hopeless or gain(rate) < self.threshold.at(view):
            plan.budget = min(plan.budget, max(1, int(view.budget * self.config.cut)))
        return plan

    def _threshold(self, view: View) -> float:
        """The lowest gain of the top third. Pre: at least one prompt is known well enough."""
        rates = (success_rate(prompt, view, self.config.least) for prompt in view.prompts)
        gains = sorted((gain(rate) for rate in rates if rate is not None), reverse=True)
        return gains[max(1, round(len(gains) * self.config.full)) - 1]
