"""2.3, dynamic sampling (DAPO, arXiv 2503.14476): generate until B groups have rewards that differ, in at most 10
generation batches.

A generation batch is B new groups and is waited for as a whole. What is kept beyond B stays ready for the next step,
which generates nothing if that is enough. After the last batch the step closes with what there is.
"""

import math
from typing import Annotated

from pydantic import Field

from untail.config import Strict
from untail.rollout.points import MECHANISMS, Finish, Keep, Mechanism, View
from untail.types import Group


@MECHANISMS.register("dynamic")
class Dynamic(Mechanism, Keep, Finish):
    sections = "2.3"
    rest = "cancel"  # nothing is under way when it closes; "close" would train what is ready beyond B at once

    class Config(Strict):
        max_batches: Annotated[int, Field(ge=1, le=10)] = 10  # a step has no more rounds than that anyway

    def keeps(self, group: Group, view: View) -> bool:
        return len({trajectory.reward for trajectory in group.trajectories if not trajectory.masked}) > 1

    def starts(self, view: View) -> int:
        return 0 if self._is_over(view) else view.wanted

    def closes_at(self, view: View) -> float:
        return view.now if not view.groups and self._is_over(view) else math.inf

    def _is_over(self, view: View) -> bool:
        return len(view.ready) >= view.wanted or view.rounds >= self.config.max_batches
