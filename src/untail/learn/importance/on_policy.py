"""No correction: r = pi / pi without a slope below, so r = 1 in every minibatch and its slope is that of log pi.

Exact where every token is of the weights being trained; with stale tokens, or with several updates on one batch, it is
biased and nothing bounds that but `learn.max_drift`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from untail.learn.importance.base import IMPORTANCES, Importance

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


@IMPORTANCES.register("on_policy")
class OnPolicy(Importance):
    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        return logprob_R
