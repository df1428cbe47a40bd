"""Pseudo on-policy by segment: r = pi / pi_v, with pi_v the policy at the start of the token's segment.

A segment ends where the weights change, so pi_v is the policy of the token's own version as the engine reported it; no
old weights are kept for it. (Where an engine changes weights within a segment, it is each token's own version still.)
`loss_scope = "last_segment"` makes earlier segments context: what is then in the loss is as fresh as it can be, and the
gradient of how a response began is left out. mu is not in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from untail.config import Strict
from untail.learn.importance.base import IMPORTANCES, Importance
from untail.learn.mask.base import Mask
from untail.learn.mask.last_segment import LastSegment

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


@IMPORTANCES.register("pois_segment")
class PoisSegment(Importance):
    class Config(Strict):
        loss_scope: Literal["all", "last_segment"] = "all"

    needs_logprobs = True
    config: Config

    @property
    def scope(self) -> Mask | None:
        return LastSegment(LastSegment.Config()) if self.config.loss_scope == "last_segment" else None

    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        return columns.engine_logprob_R
