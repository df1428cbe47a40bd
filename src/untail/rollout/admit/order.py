"""2.8, order and dispatch: which group goes first, and to which engine a response goes.

Order: `fifo`; `longest` predicted first; or `alternating` (RhymeRL's HistoPipe, arXiv 2508.18588): odd steps ascending,
even descending, so that the end of one step and the beginning of the next fit together. Prompts whose last 3 groups had
no reward go behind all others.

Dispatch, greedy: to the engine with the fewest predicted tokens to go (with `longest` this is LPT), but to a sibling's
engine, where the prompt's KV is cached, unless that has more than 2 groups' predicted tokens more to go.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from untail.config import NotNegative, PositiveInt, Strict
from untail.rollout.admit.shared import PositiveShare, is_failing
from untail.rollout.live import GroupPlan, Member
from untail.rollout.points import MECHANISMS, Admit, Mechanism, Place, View


@MECHANISMS.register("order")
class Order(Mechanism, Admit, Place):
    sections = "2.8"

    class Config(Strict):
        by: Literal["fifo", "longest", "alternating"] = "longest"
        unknown: PositiveShare = 0.25  # of the budget: a response's length while it is unknown
        failing_streak: PositiveInt = 3
        sticky: NotNegative = 2.0  # groups' tokens that a sibling's engine may have more to go
        refresh_s: NotNegative = 1.0  # seconds between two looks at every member; what is placed counts at once

    def __init__(self, config: Any):
        super().__init__(config)
        self._loads: dict[int, float] = defaultdict(float)  # engine -> predicted tokens to go
        self._looked: tuple[int, float] | None = None  # at which step and time

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        is_known = plan.predicted.source != "unknown"
        length = min(plan.predicted.mean, view.budget) if is_known else self.config.unknown * view.budget
        is_rising = self.config.by == "alternating" and view.step % 2 == 1
        plan.priority = 0.0 if self.config.by == "fifo" else -length if is_rising else length
        if is_failing(plan.prompt, view, self.config.failing_streak):
            plan.priority -= view.budget  # lengths lie between 1 and the budget: this is behind all others
        return plan

    def place(self, member: Member, free: Sequence[int], view: View) -> int | None:
        self._look(view)
        plan = member.group.plan
        siblings = {sibling.engine for sibling in member.group.members}
        best = min(free, key=self._load)
        home = min((engine for engine in free if engine in siblings), key=self._load, default=best)
        slack = self.config.sticky * plan.size * view.predictor.remaining(plan.prompt, 0)
        engine = home if self._loads[home] - self._loads[best] <= slack else best
        self._loads[engine] += self._to_go(member, view)
        return engine

    def _load(self, engine: int) -> tuple[float, int]:
        return self._loads[engine], engine

    def _look(self, view: View) -> None:
        """Thousands of members may be under way and each may end at a time of its own: to look at all of them for each
        that is placed would be too slow. A step begins with a look, for a resumed run has to place as this one does."""
        step, time = self._looked or (0, 0.0)
        if step == view.step and view.now - time < self.config.refresh_s:
            return
        self._looked = view.step, view.now
        self._loads.clear()
        for group in view.groups:
            for member in group.members:
                if member.engine is not None and member.is_open:
                    self._loads[member.engine] += self._to_go(member, view)

    def _to_go(self, member: Member, view: View) -> float:
        return view.predictor.remaining(member.group.plan.prompt, member.length)
