"""2.5, group size from history: hard prompts get up to 32 trajectories, easy ones down to 4, the step's total stays.

With p the prompt's success rate and G the recipe's group size, the size asked for falls linearly from `max` at p = 0 to
G at p = 1/2 (and where nothing is known) and on to `min` at p = 1. Plans come one at a time, so each also gets what the
ones before it in its step left over, or pays for what they took:

    size_i = clamp(asked_i + balance, min, max),    balance <- balance + G - size_i

The balance stays between G - max and G - min, however many plans there are.
"""

from typing import Any

from untail.config import PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.admit.shared import success_rate
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View


@MECHANISMS.register("group_size")
class GroupSize(Mechanism, Admit):
    sections = "2.5"

    class Config(Strict):
        min: PositiveInt = 4
        max: PositiveInt = 32

    def __init__(self, config: Any):
        super().__init__(config)
        self._step = 0
        self._balance = 0  # trajectories that the plans of this step left over

    def check(self, group: int, budget: int) -> None:
        if not self.config.min <= group <= self.config.max:
            raise ConfigError(
                f"rollout.group = {group} is not between mechanisms.group_size.min = {self.config.min} and "
                f"mechanisms.group_size.max = {self.config.max}; change one of them"
            )

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        if self._step != view.step:
            self._step, self._balance = view.step, 0
        asked = self._asked(success_rate(plan.prompt, view), view.group) + self._balance
        size = min(max(asked, self.config.min), self.config.max)
        self._balance += view.group - size
        # Over-sampling within the group, if somebody asked for it, keeps its ratio.
        plan.size, plan.keep = -(-size * plan.size // plan.keep), size
        return plan

    def _asked(self, rate: float | None, group: int) -> int:
        if rate is None:
            return group
        end = self.config.max if rate < 0.5 else self.config.min
        return round(group + (end - group) * abs(1 - 2 * rate))
