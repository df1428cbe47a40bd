"""The drafter's model (EAGLE's): one decoder layer that guesses the target's next hidden state.

    x_t = fc [embed(token_{t+1}); hidden_t]        guess of hidden_{t+1} = layer(x_t; x_0 ... x_{t-1})

hidden_t is what the target's output head sees at position t. Embedding and head are the target's own, read and never
written; what is here is about one layer of it. The layer is Llama's without its input norm, whatever the target's
family: it is the layer that vLLM loads (`EagleLlamaForCausalLM`).

Invariant: rows are packed and `attention` alone knows which may look at which, as in the target. With one layer, the
key and the value of a position depend on that position alone: they can be filled in at any time, in any order.

Shape suffixes: T rows, D hidden, H query heads, K key-value heads.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from untail.draft.adaptive.target import Target
from untail.engine.attention.base import Attention
from untail.engine.models.few_rows import linear
from untail.engine.models.rope import rotate
from untail.engine.models.shape import Shape

Turn = tuple[Tensor, Tensor]
"""cos and sin of each row's position."""


def draft_shape(target: Shape) -> Shape:
    return replace(target, family="llama", layers=1, qkv_bias=False, qk_norm=False)


class DraftModel(nn.Module):
    def __init__(self, target: Shape, device: torch.device | str, dtype: torch.dtype):
        super().__init__()
        shape = self.shape = draft_shape(target)

        def make(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size, device=device, dtype=dtype))

        self.fc = make(shape.hidden, 2 * shape.hidden)
        self.qkv = make(shape.q_size + 2 * shape.kv_size, shape.hidden)
        self.out = make(shape.hidden, shape.q_size)
        self.post_norm = make(shape.hidden)
        self.gate_up = make(2 * shape.intermediate, shape.hidden)
        self.down = make(shape.hidden, shape.intermediate)

    @torch.no_grad()
    def initialise(self, seed: int = 0) -> "DraftModel":
        """The layer begins as the identity of what `fc` lets through, and that is mostly hidden_t: near enough to
        hidden_{t+1} in size for the head to make sense of it."""
        random = torch.Generator().manual_seed(seed)
        noise = lambda size: torch.randn(size, generator=random) / size[-1] ** 0.5
        for parameter in (self.fc, self.qkv, self.gate_up):
            parameter.copy_(noise(parameter.shape))
        for parameter in (self.out, self.down):
            parameter.zero_()
        self.post_norm.fill_(1.0)
        return self

    def forward(self, embedded_TD: Tensor, hidden_TD: Tensor, turn: Turn, attention: Attention) -> Tensor:
        """The guess of each row's next hidden state, [T, D]."""
        x_TD = self._join(embedded_TD, hidden_TD)
        q, k, v = linear(x_TD, self.qkv).view(len(x_TD), -1, self.shape.head_dim).split(self._heads, dim=1)
        x_TD = x_TD + linear(attention(0, rotate(q, *turn), rotate(k, *turn), v), self.out)
        normed = F.rms_norm(x_TD, self.post_norm.shape, self.post_norm, self.shape.norm_eps)
        gate, up = linear(normed, self.gate_up).chunk(2, dim=-1)
        return x_TD + linear(F.silu(gate) * up, self.down)

    def keys_values(self, embedded_TD: Tensor, hidden_TD: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Of rows that are looked at and whose guess nobody wants, [T, K, D] each."""
        x_TD, shape = self._join(embedded_TD, hidden_TD), self.shape
        kv = linear(x_TD, self.qkv[shape.q_size :]).view(len(x_TD), 2 * shape.kv_heads, shape.head_dim)
        k, v = kv.chunk(2, dim=1)
        return rotate(k, *turn), v

    @property
    def _heads(self) -> tuple[int, int, int]:
        return self.shape.heads, self.shape.kv_heads, self.shape.kv_heads

    def _join(self, embedded_TD: Tensor, hidden_TD: Tensor) -> Tensor:
        return linear(torch.cat((embedded_TD, hidden_TD), dim=-1), self.fc)


def turn_of(target: Target, positions_T: Tensor, dtype: torch.dtype) -> Turn:
    cos, sin = target.rope_table[positions_T].to(dtype).unbind(1)
    return cos, sin
