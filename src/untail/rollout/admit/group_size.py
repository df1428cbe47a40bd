"""2.5, group size from history: hard prompts get up to 32 trajectories, easy ones down to 4, the step's total stays.

With p a prompt's success rate and G the recipe's group size:

    want(p)   linear from `max` at p = 0 to G at p = 1/2 and on to `min` at p = 1
    asked_i = G want(p_i) / (mean of want over all prompts with a history), or G where nothing is known
    size_i  = clamp(asked_i + 0.25 balance, min, max);   balance <- balance + G - size_i

So it counts how hard a prompt is next to the others: were it p alone, the first hard prompts of a step would take what
all others then lack. Plans come one at a time; the balance is what the plans of this step left over, and the next ones
share it, or pay for it, a quarter each.
"""

from statistics import fmean
from typing import Any

from untail.config import PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.admit.shared import PerStep, PositiveShare, success_rate
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View


@MECHANISMS.register("group_size")
class GroupSize(Mechanism, Admit):
    sections = "2.5"

    class Config(Strict):
        min: PositiveInt = 4
        max: PositiveInt = 32
        payback: PositiveShare = 0.25  # of the balance that the next plan takes on

    def __init__(self, config: Any):
        super().__init__(config)
        self.mean_want = PerStep(self._mean_want)
        self._step = 0
        self._balance = 0  # trajectories

    def check(self, group: int, budget: int) -> None:
        if not self.config.min <= group <= self.config.max:
            raise ConfigError(
                f"rollout.group = {group} is not between mechanisms.group_size.min = {self.config.min} and "
                f"mechanisms.group_size.max = {self.config.max}; change one of them"
            )

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        if self._step != view.step:
            self._step, self._balance = view.step, 0
        rate = success_rate(plan.prompt, view)
        asked = view.group if rate is None else view.group * self._want(rate, view.group) / self.mean_want.at(view)
        size = min(max(round(asked + self.config.payback * self._balance), self.config.min), self.config.max)
        self._balance += view.group - size
        # Over-sampling within the group, if somebody asked for it, keeps its ratio.
        plan.size, plan.keep = -(-size * plan.size // plan.keep), size
        return plan

    def _want(self, rate: float, group: int) -> float:
        end = self.config.max if rate < 0.5 else self.config.min
        return group + (end - group) * abs(1 - 2 * rate)

    def _mean_want(self, view: View) -> float:
        """Pre: at least one prompt has a history."""
        rates = (success_rate(prompt, view) for prompt in view.prompts)
        return fmean(self._want(rate, view.group) for rate in rates if rate is not None)
