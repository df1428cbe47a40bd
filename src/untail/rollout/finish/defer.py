"""3.6, partial rollout: the step closes as soon as the pool holds a batch of groups, and what is unfinished goes on in
the next step with its tokens, log-probs and versions (UloRL, Kimi k1.5). `rollout.max_staleness` bounds how long.

What would grow older than that holds the close up, and goes first. `overdue = "alone"` (ours): when nothing else is
waited for, everything else rests, so that the last ones run in a small batch, where steps are short and drafts pay."""

import math
from typing import Any, Literal

from untail.config import Strict
from untail.rollout.points import MECHANISMS, Finish, Mechanism, View


@MECHANISMS.register("defer")
class Defer(Mechanism, Finish):
    sections = "3.6"
    rest = "defer"

    class Config(Strict):
        overdue: Literal["first", "alone"] = "first"

    config: Config

    def __init__(self, config: Any):
        super().__init__(config)
        self.overdue_alone = config.overdue == "alone"

    def starts(self, view: View) -> int:
        """A round has a batch's worth of trajectories: what is unfinished, filled up with new groups."""
        return view.wanted - view.open // view.group

    def closes_at(self, view: View) -> float:
        return view.now if len(view.ready) >= view.wanted else math.inf
