"""Pseudo on-policy (UloRL's POIS): r = pi / pi_prox for all tokens, whoever sampled them.

The first update of a batch has ratio 1 by definition, so that nothing is clipped away because it is old. Stale tokens
are taken for the present policy's: biased by pi_prox / mu. The default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from untail.learn.importance.base import IMPORTANCES, Importance

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


@IMPORTANCES.register("pois")
class Pois(Importance):
    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        return prox_R
