"""A decoder as a policy: packed micro-batches in, log-probs at the training temperature out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from untail.engine.attention.varlen import SharedPrefixAttention, VarlenAttention
from untail.engine.models.decoder import Decoder
from untail.learn.logprob import LossOfRows, head_loss, token_logprobs
from untail.learn.pack import MicroBatch


@dataclass(frozen=True, slots=True)
class Policy:
    decoder: Decoder
    temperature: float
    logit_rows: int
    recompute: bool = False

    @torch.no_grad()
    def logprobs(self, micro: MicroBatch) -> Tensor:
        """log pi of every token in the loss, [R]."""
        head = (self.decoder.output_weight, micro.columns.target_R, self.temperature, self.logit_rows)
        return token_logprobs(self._hidden(micro), *head)[0]

    def loss(self, micro: MicroBatch, loss_of: LossOfRows) -> Tensor:
        """`loss_of` summed over the rows of the micro-batch, differentiable in the decoder's parameters."""
        head = (self.decoder.output_weight, micro.columns.target_R, self.temperature, self.logit_rows)
        return head_loss(self._hidden(micro), *head, loss_of)

    def _hidden(self, micro: MicroBatch) -> Tensor:
        attention = SharedPrefixAttention(VarlenAttention(micro.lengths), micro.unrolled_U, micro.home_T)
        hidden_TD = self.decoder(micro.ids_T, micro.positions_T, attention, self.recompute)
        return hidden_TD.index_select(0, micro.predictor_R)
