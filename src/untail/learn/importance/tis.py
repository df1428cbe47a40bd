"""Truncated importance sampling: r = pi / pi_prox, clipped, and the whole term times w = min(pi_prox / mu, `cap`).

w has no slope. The clip bounds how far one update goes, the cap (2) bounds the variance that old tokens bring; what the
cap cuts off is its bias. Ratios are per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from untail.config import PositiveFloat, Strict
from untail.learn.importance.base import IMPORTANCES, Importance

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


@IMPORTANCES.register("tis")
class Tis(Importance):
    class Config(Strict):
        cap: PositiveFloat = 2.0

    needs_logprobs = True
    knows_sampling = True
    config: Config

    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        return prox_R

    def scale(self, prox_R: Tensor, columns: LossColumns) -> Tensor | None:
        return (prox_R - columns.behaviour_R).exp().clamp(max=self.config.cap)
