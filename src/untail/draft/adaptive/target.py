"""What the drafter needs of its target: the embedding, the output head and the positions, read and never written.

Where the target's decoder is whole, it is the decoder itself. Where its parameters are spread over ranks, `Ends` has
copies of these.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Shape


class Target(Protocol):
    @property
    def shape(self) -> Shape: ...

    @property
    def embed(self) -> Tensor: ...

    @property
    def output_weight(self) -> Tensor: ...

    @property
    def rope_table(self) -> Tensor: ...


class Ends:
    """Both ends of a decoder that is about to be sharded, as of the last `update`."""

    def __init__(self, decoder: Decoder):
        """Pre: it is still whole."""
        self.shape = decoder.shape
        self.rope_table = decoder.rope_table
        self.embed = decoder.embed.detach().clone()
        self.output_weight = self.embed if decoder.head is None else decoder.head.detach().clone()

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor]) -> None:
        """From whole weights under Hugging Face's names."""
        self.embed.copy_(weights["model.embed_tokens.weight"])
        if not self.shape.tied:
            self.output_weight.copy_(weights["lm_head.weight"])
