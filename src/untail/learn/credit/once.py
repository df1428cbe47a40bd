"""Each token once: a token that k trajectories share weighs 1 / k in each, so that all of it together weighs 1 and
learns from the mean of their advantages. The default. A masked trajectory is not one of the k; one whose tokens a mask
of `learn.masks` takes out still is.

Those whose parent is not there (it was dropped or is masked) share with those that are.
"""

from collections import defaultdict

import numpy as np

from untail.learn.credit.base import CREDITS, Credit
from untail.learn.credit.lineage import runs_of
from untail.types import Group


@CREDITS.register("once")
class Once(Credit):
    def weigh(self, group: Group) -> list[np.ndarray]:
        every = runs_of(group)
        longest = max((len(trajectory.tokens) for trajectory in group.trajectories), default=0)
        sharers: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(longest))
        for trajectory, runs in zip(group.trajectories, every, strict=True):
            for run in runs:
                sharers[run.owner][run.begin : run.end] += not trajectory.masked
        counts = [np.concatenate([sharers[run.owner][run.begin : run.end] for run in runs]) for runs in every]
        return [1 / np.maximum(count, 1) for count in counts]
