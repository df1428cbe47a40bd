"""The target's output head, for the tokens that are seen most.

The drafter's layer is small and a whole head is not: for SmolLM2 it is eight times the layer. A few thousand tokens
make up nearly all of a run's text, and a draft of any other is not worth what it would cost to have it among the
candidates (FR-Spec, arXiv 2502.14856).

Invariant: candidates are in the order of their ids, so that a draw from them with the target's own random number lands
where the target's would (coupled.py). The rows are the target's own where all of its tokens are candidates, else a copy
as of the last `refresh`.
"""

import torch
from torch import Tensor

from untail.draft.adaptive.target import Target
from untail.engine.models.product import product

SEEN = "seen"  # under this name a drafter's tensors say how often each token was seen
MOST = 4096  # candidates; a vocabulary that is less than twice as large is taken whole


class Head:
    def __init__(self, target: Target):
        self._target = target
        self._seen_V = torch.zeros(target.shape.vocab, dtype=torch.int64)
        self._ids_C: Tensor | None = None
        self._rows_CD: Tensor | None = None

    @property
    def rows_CD(self) -> Tensor:
        return self._target.output_weight.detach() if self._rows_CD is None else self._rows_CD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return product(hidden_RD.to(self.rows_CD.dtype), self.rows_CD)

    def token_ids(self, candidates_R: Tensor) -> Tensor:
        return candidates_R if self._ids_C is None else self._ids_C[candidates_R]

    def see(self, ids_T: Tensor) -> None:
        self._seen_V += torch.bincount(ids_T.cpu(), minlength=len(self._seen_V))

    def state(self) -> Tensor:
        return self._seen_V.clone()

    def restore(self, state: Tensor) -> None:
        """Pre: of the same vocabulary."""
        self._seen_V = state.clone()
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """The target's weights have changed, or what is common. Pre: nobody reads meanwhile."""
        weight_VD = self._target.output_weight
        if len(weight_VD) < 2 * MOST or not self._seen_V.any():
            return
        # A token that was never seen is as good as any other; the first of them are punctuation and single letters.
        ids_C = self._seen_V.sort(descending=True, stable=True).indices[:MOST].sort().values
        self._ids_C = ids_C.to(weight_VD.device)
        self._rows_CD = weight_VD[self._ids_C]
