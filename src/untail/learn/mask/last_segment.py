"""The last segment alone is in the loss, and those before it are context: `loss_scope` of the importance
`pois_segment`, and a mask like any other."""

import numpy as np

from untail.learn import column
from untail.learn.mask.base import MASKS, Mask
from untail.types import Trajectory


@MASKS.register("last_segment")
class LastSegment(Mask):
    section = "8.2"

    def keep(self, trajectory: Trajectory) -> np.ndarray:
        kept = np.ones(len(trajectory.tokens))
        kept[: column.segments(trajectory)[-1].begin] = 0
        return kept
