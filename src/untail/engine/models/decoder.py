"""The decoder as a plain loop: the one definition that the engine runs and the learner trains.

Invariant: tokens are packed. `forward` sees one flat row of T tokens with their positions and knows nothing of
sequences, batches or caches; `attention` alone knows which token may look at which. q, k and v are one matrix, and so
are gate and up: names.py says how they map to Hugging Face's names. With weights in half precision the residual stream
and whatever leaves a product are float32, and only what a product or attention takes is rounded (product.py).

Shape suffixes: T tokens, D hidden, H query heads, K key-value heads, V vocabulary, R rows whose logits are wanted.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from untail.engine.attention.base import Attention, operand_dtype
from untail.engine.models.product import HALF, at_least_float32, fine_dtype, product
from untail.engine.models.rope import cos_sin_table, rotate
from untail.engine.models.shape import Shape

T = TypeVar("T")


class Layer(nn.Module):
    """The parameters of one layer; the arithmetic is in `Decoder.layer`."""

    def __init__(self, shape: Shape, make):
        super().__init__()
        qkv = shape.q_size + 2 * shape.kv_size
        self.input_norm = make(shape.hidden)
        self.qkv = make(qkv, shape.hidden)
        self.qkv_bias = make(qkv) if shape.qkv_bias else None
        self.q_norm = make(shape.head_dim) if shape.qk_norm else None
        self.k_norm = make(shape.head_dim) if shape.qk_norm else None
        self.out = make(shape.hidden, shape.q_size)
        self.post_norm = make(shape.hidden)
        self.gate_up = make(2 * shape.intermediate, shape.hidden)
        self.down = make(shape.hidden, shape.intermediate)

    def forward(self, work: Callable[..., T], *arguments: Any) -> T:
        """Of a sharded layer: its parameters are whole while `work` runs, and only then."""
        return work(*arguments)


class Decoder(nn.Module):
    rope_table: Tensor
    is_sharded = False  # parameters are then whole only within `run` and `within`

    def __init__(self, shape: Shape, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        super().__init__()

        def make(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size, device=device, dtype=dtype))

        self.shape = shape
        self.embed = make(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, make) for _ in range(shape.layers))
        self.norm = make(shape.hidden)
        self.head = None if shape.tied else make(shape.vocab, shape.hidden)
        table = cos_sin_table(shape.rope, shape.head_dim, shape.context, torch.device(device)).to(
            at_least_float32(dtype)
        )
        self.register_buffer("rope_table", table, persistent=False)
        # Walking an nn.ModuleList costs more than a small layer's arithmetic; the engine's step walks this instead.
        self._layers: tuple[Layer, ...] = tuple(self.layers)  # type: ignore[arg-type]

    def initialise(self, generator: torch.Generator, std: float = 0.02) -> "Decoder":
        """Random weights: norms one, biases zero, matrices normal."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm"):
                    parameter.fill_(1.0)
                elif parameter.ndim == 1:
                    parameter.zero_()
                else:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
        return self

    def forward(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        attention: Attention,
        recompute: bool = False,
        layers: Sequence[int] | None = None,
    ) -> Tensor:
        """The last layer's normed hidden states [T, D]. `recompute` trades time for memory in the backward pass;
        `layers` leaves the others out."""
        cos, sin = self.rope_table[positions_T].unbind(1)
        hidden_TD = self.embedded(ids_T)
        for number in range(len(self._layers)) if layers is None else layers:
            arguments = (number, hidden_TD, cos, sin, attention)
            hidden_TD = self.within(number, recompute, self.layer, *arguments)
        return self.rms(hidden_TD, self.norm)

    def embedded(self, ids_T: Tensor) -> Tensor:
        return F.embedding(ids_T, self.embed).to(at_least_float32(self.embed.dtype))

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Some other pass than `forward`, with the parameters that are no layer's."""
        return work(*arguments)

    def within(self, number: int, recompute: bool, work: Callable[..., T], *arguments: Any) -> T:
        """`work` with a layer's parameters."""
        if self.is_sharded:
            work, arguments = self._layers[number], (work, *arguments)
        return checkpoint(work, *arguments, use_reentrant=False) if recompute else work(*arguments)

    def layer(self, number: int, hidden_TD: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        return self.after_attention(number, hidden_TD, attention(number, *self.qkv(number, hidden_TD, cos, sin)))

    def qkv(self, number: int, hidden_TD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A layer's queries, keys and values, rotated, as attention takes them."""
        layer, shape = self._layers[number], self.shape
        weight, bias, q_norm = layer.qkv, layer.qkv_bias, layer.q_norm  # each time, a module searches for them
        normed_TD = self.rms(hidden_TD, layer.input_norm, is_fine=True)
        if q_norm is None and (kernels := _kernels_for(weight)) is not None:
            return kernels.attention_operands(normed_TD, weight, bias, cos, sin, shape)
        qkv = product(normed_TD, weight)
        if bias is not None:
            qkv = qkv + bias
        qkv = qkv.view(-1, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        if q_norm is not None and layer.k_norm is not None:
            q, k, v = qkv.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
            qk = torch.cat((self._normed(q, q_norm), self._normed(k, layer.k_norm)), dim=1)
        else:
            qk, v = qkv.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
        qk = rotate(qk, cos, sin)
        if weight.dtype in HALF:
            qk, v = qk.to(operand_dtype(weight.dtype)), v.to(operand_dtype(weight.dtype))
        q, k = qk.split((shape.heads, shape.kv_heads), dim=1)
        return q, k, v

    def after_attention(self, number: int, hidden_TD: Tensor, attended: Tensor) -> Tensor:
        """The rest of a layer: what attention found is added, then the feed-forward."""
        layer = self._layers[number]
        weight = layer.out
        if attended.dtype != weight.dtype and fine_dtype(weight.dtype, self.shape.hidden) == weight.dtype:
            attended = attended.to(weight.dtype)
        hidden_TD = product(attended, weight, onto_RO=hidden_TD)
        active = self._gated(self.rms(hidden_TD, layer.post_norm), layer.gate_up)
        return product(active, layer.down, onto_RO=hidden_TD)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        return product(hidden_RD, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        return self.embed if self.head is None else self.head

    def rms(self, x_TD: Tensor, gain: Tensor, is_fine: bool = False) -> Tensor:
        """Normed, in the precision of the weights, or as the products around attention take it."""
        if gain.dtype not in HALF:
            return self._normed(x_TD, gain)
        dtype = fine_dtype(gain.dtype, self.shape.hidden) if is_fine else gain.dtype
        if (kernels := _kernels_for(gain)) is not None:
            return kernels.norm(x_TD, gain, self.shape.norm_eps, dtype)
        return self._normed(x_TD, gain).to(dtype)

    def _normed(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, gain.shape, gain if gain.dtype == x.dtype else gain.to(x.dtype), self.shape.norm_eps)

    def _gated(self, x_TD: Tensor, gate_up: Tensor) -> Tensor:
        if (kernels := _kernels_for(gate_up)) is not None:
            return kernels.gated(x_TD, gate_up)
        gate, up = product(x_TD, gate_up).chunk(2, dim=-1)
        active = F.silu(gate) * up
        return active.to(gate_up.dtype) if gate_up.dtype in HALF else active


def _kernels_for(weight: Tensor) -> ModuleType | None:
    """With gradients, for half precision on a GPU, which alone needs Triton."""
    if not weight.is_cuda or weight.dtype not in HALF:
        return None
    from untail.engine.kernels import gradients

    return gradients
