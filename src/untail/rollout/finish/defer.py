"""3.6, partial rollout: the step closes as soon as the pool holds a batch of groups, and what is unfinished goes on in
the next step with its tokens, log-probs and versions (UloRL, Kimi k1.5). `rollout.max_staleness` bounds how long."""

import math

from untail.rollout.points import MECHANISMS, Finish, Mechanism, View


@MECHANISMS.register("defer")
class Defer(Mechanism, Finish):
    sections = "3.6"
    rest = "defer"

    def starts(self, view: View) -> int:
        """A round has a batch's worth of trajectories: what is unfinished, filled up with new groups."""
        return view.wanted - view.open // view.group

    def closes_at(self, view: View) -> float:
        return view.now if len(view.ready) >= view.wanted else math.inf
