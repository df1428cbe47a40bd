"""Segment-aware (UloRL's SAIS): r = pi / mu, each token against what its own segment's weights sampled it from.

Token by token it corrects for staleness and for a copy's own temperature; what is far off is clipped away. Over a whole
response the product of the ratios would be the unbiased correction, so this is biased, as PPO is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from untail.learn.importance.base import IMPORTANCES, Importance

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


@IMPORTANCES.register("segment")
class Segmentwise(Importance):
    needs_logprobs = True
    knows_sampling = True

    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        return columns.behaviour_R
