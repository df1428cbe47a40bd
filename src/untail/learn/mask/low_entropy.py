"""8.5, low-entropy segments: a segment whose model tokens have a mean entropy < `entropy` (0.02) leaves the loss.

This is w_entropy of 8.5 and 8.6: 0 for such a segment, 1 for any other. A response that was never cut is one segment.
"""

import numpy as np

from untail.config import NotNegative, Strict
from untail.learn import column
from untail.learn.mask.base import MASKS, Mask
from untail.types import Trajectory


@MASKS.register("low_entropy")
class LowEntropy(Mask):
    class Config(Strict):
        entropy: NotNegative = 0.02

    section = "8.5"
    needs_entropy = True
    config: Config

    def keep(self, trajectory: Trajectory) -> np.ndarray:
        kept = np.ones(len(trajectory.tokens))
        ours, entropy = column.from_model(trajectory) > 0, column.entropy(trajectory)
        for segment in column.segments(trajectory):
            span = slice(segment.begin, segment.end)
            if ours[span].any() and entropy[span][ours[span]].mean() < self.config.entropy:
                kept[span] = 0
        return kept
