"""A sprint at the end of a step (ours): when little of the batch is missing, what is soonest whole runs alone.

In a full batch the last groups take as long as all others. Alone, in a small one, their steps are short, and drafts
pay. Not on a device whose steps are hardly shorter with few: there making way would cost the others more than the step
gains, and everybody runs on. Who makes way keeps its tokens and its KV, and goes on when the sprint is over. What would
grow too old for the next update (`rollout.max_staleness`) sprints, too, for the step cannot close without it; and what
would soon, lest a later step has to wait for it; but where that is everybody there is no sprint.

Invariant: whether there is a sprint is decided once in a step. Whoever was chosen stays so until its group is whole, so
that nobody makes way twice in a sprint.
"""

import math
from collections.abc import Set
from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.rollout.live import LiveGroup
from untail.rollout.points import MECHANISMS, Finish, Mechanism, View


@MECHANISMS.register("sprint")
class Sprint(Mechanism, Finish):
    sections = "3.6"
    rest = "defer"

    class Config(Strict):
        missing: Annotated[float, Field(ge=0, le=1)] = 0.3  # share of the batch with which it begins
        spare: Annotated[int, Field(ge=0)] = 4  # groups that run beside as many as are missing: who knows who is first
        pays: Annotated[float, Field(ge=0, le=1)] = 0.6  # share of the present tokens per second that they make alone
        soon: Annotated[int, Field(ge=0)] = 1  # steps before a step would wait for a group, from which on it sprints

    config: Config

    def __init__(self, config: Any):
        super().__init__(config)
        self._chosen: tuple[int, frozenset[str]] = (0, frozenset())  # in which step, and which groups
        self._declined = 0  # the last step in which a sprint would not have paid

    def closes_at(self, view: View) -> float:
        return math.inf

    def waits_for(self, view: View) -> Set[str] | None:
        missing = view.wanted - len(view.ready)
        if missing > self.config.missing * view.wanted or self._declined == view.step:
            return None
        overdue = view.overdue()
        step, before = self._chosen
        live = {group.id: group for group in view.groups}
        chosen = {name for name in before if name in live} if step == view.step else set()
        if len(chosen | overdue) < missing:
            others = [group for name, group in live.items() if name not in chosen | overdue]
            others.sort(key=lambda group: (_to_go(group, view), group.id))
            chosen |= {group.id for group in others[: missing - len(chosen | overdue) + self.config.spare]}
        needed = chosen | overdue
        sprinters = needed | view.overdue(after=self.config.soon)
        if step != view.step:
            # With a tight bound nearly all are soon too old: where nobody would make way, new groups need not wait.
            is_for_all = sprinters == live.keys() and sprinters != needed
            if is_for_all or not self._pays([live[name] for name in sprinters], view):
                self._declined = view.step
                return None
        self._chosen = view.step, frozenset(chosen)
        # With too few to fill the batch there must be new ones, and these have slots to wait for.
        return sprinters if len(needed) >= max(1, missing) else None

    def _pays(self, chosen: list[LiveGroup], view: View) -> bool:
        speed = lambda members: members / view.step_seconds(max(1, members // view.engines))
        return speed(sum(len(group.open) for group in chosen)) >= self.config.pays * speed(max(1, view.running))


def _to_go(group: LiveGroup, view: View) -> float:
    """Tokens of its longest member that are still to come."""
    remaining, finished = view.predictor.remaining, group.finished_lengths
    return max((remaining(group.plan.prompt, member.length, finished) for member in group.open), default=0.0)
