"""A decoder as a policy: packed micro-batches in, log-probs at the training temperature out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from untail.engine.attention.varlen import SharedPrefixAttention
from untail.engine.models.decoder import Decoder
from untail.learn.attention import WholeSequences
from untail.learn.logprob import LossOfRows, head_loss, token_logprobs
from untail.learn.pack import MicroBatch
from untail.learn.prune import forward_with_constants

Hear = Callable[[MicroBatch, Tensor], None]
"""Gets a micro-batch and its tokens' normed hidden states [T, D], without gradient; where the last ones are constants,
those of the first `live` alone."""


@dataclass(frozen=True, slots=True)
class Policy:
    decoder: Decoder
    temperature: float
    logit_rows: int

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """log pi of every token in the loss, [R]."""
        hidden_RD = self.hidden(micro)
        return token_logprobs(hidden_RD, *self._head(micro))[0]

    def loss(self, micro: MicroBatch, loss_of: LossOfRows, hear: Hear | None = None) -> Tensor:
        """`loss_of` summed over the rows of the micro-batch, differentiable in the decoder's parameters."""
        hidden_RD = self.hidden(micro, hear)
        return head_loss(hidden_RD, *self._head(micro), loss_of)

    def _head(self, micro: MicroBatch) -> tuple[Tensor, Tensor, float, int]:
        """After the pass: a sharded decoder's own parameters stay whole then."""
        return self.decoder.output_weight, micro.columns.target_R, self.temperature, self.logit_rows

    def hidden(self, micro: MicroBatch, hear: Hear | None = None) -> Tensor:
        """The normed hidden state that predicts each token in the loss, [R, D]."""
        attention = SharedPrefixAttention(WholeSequences(micro.lengths), micro.unrolled_U, micro.home_T)
        tokens = (micro.ids_T, micro.positions_T)
        if micro.live < len(micro.ids_T):
            rest = (micro.live, attention, micro.recompute)
            hidden_TD = self.decoder.run(forward_with_constants, self.decoder, *tokens, *rest)
        else:
            hidden_TD = self.decoder(*tokens, attention, micro.recompute)
        if hear is not None:
            hear(micro, hidden_TD.detach())
        return hidden_TD.index_select(0, micro.predictor_R)
