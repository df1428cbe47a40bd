"""Which attention a packed pass goes through: the flash kernel for sequences of any length, or the plain one.

Invariant: both see the same sequences and give the same output to rounding. The kernel takes bf16 and fp16 on a GPU and
heads up to 256; everything else goes the plain way, in one call for each run of equal lengths. It shares keys and
values between grouped queries. Operands are rounded as the engine's attention rounds them; gradients on their way
through fp16 are multiplied by a power of two, a layer's own, so that they neither vanish nor overflow there.
"""

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from untail.engine.attention.base import Attention, operand_dtype
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.models.decoder import Decoder
from untail.engine.models.product import at_least_float32, fine_dtype

LARGEST_HEAD = 256
CAUSAL = (-1, 0)
LARGEST_SLOPE = 2.0**-3  # of attention's output, in fp16; some thousand of them may add up
# torch 2.11 takes grouped queries as they are; later ones want to be told.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


class WholeSequences:
    """`lengths` are those of the packed sequences, in their order; they sum to T."""

    def __init__(self, lengths: Sequence[int]):
        self._plain = VarlenAttention(lengths)
        self._ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        self._longest = max(lengths)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if not flash_takes(q_THD):
            return self._plain(layer, q_THD, k_TKD, v_TKD)
        self._ends = self._ends.to(q_THD.device)  # copied in the first layer alone
        bounds = (self._ends, self._ends, self._longest, self._longest)
        out_THD = varlen_attn(q_THD, k_TKD, v_TKD, *bounds, window_size=CAUSAL, **GROUPED)
        assert isinstance(out_THD, Tensor)
        return out_THD.flatten(1)


def flash_takes(q_THD: Tensor) -> bool:
    half = q_THD.dtype in (torch.bfloat16, torch.float16)
    return q_THD.is_cuda and half and q_THD.shape[-1] <= LARGEST_HEAD and q_THD.shape[-1] % 8 == 0


class Rounded:
    """An attention whose operands are rounded as the engine's are beside such weights."""

    def __init__(self, attention: Attention, decoder: Decoder):
        self._attention, self._decoder = attention, decoder

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        weights = self._decoder._layers[
            layer
        ].out.dtype  # asked here: parts of a sharded layer are in float32 elsewhere
        if weights == at_least_float32(weights):
            return self._attention(layer, q_THD, k_TKD, v_TKD)
        scale = Scale()
        q_THD, k_TKD, v_TKD = (_Enter.apply(x, operand_dtype(weights), scale) for x in (q_THD, k_TKD, v_TKD))
        return _Leave.apply(
            self._attention(layer, q_THD, k_TKD, v_TKD), fine_dtype(weights, self._decoder.shape.hidden), scale
        )


class Scale:
    """Of the gradients within one attention; known once that of its output is."""

    factor: Tensor


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, scale: Scale) -> Tensor:
        ctx.scale, ctx.dtype = scale, x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].to(ctx.dtype).div_(ctx.scale.factor), None, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, scale: Scale) -> Tensor:
        ctx.scale, ctx.dtype = scale, x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        most = torch.linalg.vector_norm(grads[0], math.inf, dtype=torch.float32).clamp(min=1e-30)
        ctx.scale.factor = (LARGEST_SLOPE / most).log2().floor().exp2()
        return (grads[0] * ctx.scale.factor).to(ctx.dtype), None, None
