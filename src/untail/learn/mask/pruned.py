"""8.6, segment-aware advantage: what its group pruned has a part in the group's statistics, but not in the loss.

With A of the whole group, the advantage of a segment is
  A_seg = A (1 - pruned) w_entropy,  times the clone rule of `learn.credit`
where `pruned` is 1 for every segment of a trajectory that a group decision ended. w_entropy is the mask `low_entropy`;
`samples_of` multiplies the three. A watcher's stop is not a group decision: its penalty is there to teach.
"""

import numpy as np

from untail.config import Strict
from untail.learn.mask.base import MASKS, Mask
from untail.types import Trajectory


@MASKS.register("pruned")
class Pruned(Mask):
    class Config(Strict):
        reasons: tuple[str, ...] = ("duplicate", "outlier", "tournament", "mode_collapse")

    section = "8.6"
    config: Config

    def keep(self, trajectory: Trajectory) -> np.ndarray:
        return np.full(len(trajectory.tokens), 0.0 if trajectory.stopped in self.config.reasons else 1.0)
