"""Norm, attention's operands and gate on a GPU with their gradients, for half-precision weights (models/product.py).

Invariant: computed in float32; what leaves is in the precision that its taker asks for. Kept for the backward pass is
what was rounded, except a norm's input, which the residual stream keeps anyhow.

Shape suffixes: T tokens, D hidden, I inner, N heads of queries, keys and values together, H a head's numbers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from untail.engine.attention.base import operand_dtype
from untail.engine.kernels.elementwise import launch_norm, silu_kernel
from untail.engine.models.product import product
from untail.engine.models.shape import Shape

PROGRAMS = 528  # of a norm's gradient: four for each of an H200's processors


def norm(x_TD: Tensor, gain_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    if torch.is_grad_enabled():
        return _Norm.apply(x_TD, gain_D, eps, dtype)
    return _normed(x_TD, gain_D, eps, dtype)


def gated(x_TD: Tensor, weight_ID: Tensor) -> Tensor:
    """silu(gate) * up of the product; gate is the weight's first half, up the last."""
    if torch.is_grad_enabled():
        return _Gated.apply(x_TD, weight_ID)
    return _activated(product(x_TD, weight_ID), x_TD.new_empty(0))


def attention_operands(
    x_TD: Tensor, weight: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of the normed x; the first two turned."""
    given = (x_TD, weight, bias, cos, sin, shape.heads + shape.kv_heads, shape.head_dim)
    out_TNH = _Operands.apply(*given) if torch.is_grad_enabled() else _operands(*given)
    q, k, v = out_TNH.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    return q, k, v


def _operands(
    x_TD: Tensor, weight: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, turned: int, head_dim: int
) -> Tensor:
    qkv_TNH = product(x_TD, weight).unflatten(1, (-1, head_dim))
    out_TNH = torch.empty_like(qkv_TNH, dtype=operand_dtype(weight.dtype))
    _turn(qkv_TNH, bias, cos, sin, out_TNH, turned)
    return out_TNH


def _turn(
    x_TNH: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, out_TNH: Tensor, turned: int, back: bool = False
) -> None:
    """The first `turned` heads of each token by its angles, or back."""
    T, N, H = x_TNH.shape
    turn_kernel[triton.cdiv(T, 16), N](
        x_TNH, x_TNH if bias is None else bias, cos, sin, out_TNH, T, cos.stride(0),
        TURNED=turned, HEADS=N, HALF=H // 2, BLOCK=triton.next_power_of_2(H // 2), ROWS=16, BIAS=bias is not None,
        BACK=back, num_warps=2,
    )  # fmt: skip


def _normed(x_TD: Tensor, gain_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    out_TD = torch.empty_like(x_TD, dtype=dtype)
    launch_norm(x_TD, gain_D, out_TD, eps)
    return out_TD


def _activated(gate_up: Tensor, kept: Tensor) -> Tensor:
    """`kept`: where a rounded gate and up go, if it is not empty."""
    T, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out_TI = torch.empty(T, inner, device=gate_up.device, dtype=kept.dtype)
    silu_kernel[T, triton.cdiv(inner, 2048)](
        gate_up, out_TI, kept, N=inner, BLOCK=2048, KEEP=len(kept) > 0, CHAINED=False, num_warps=8,
    )  # fmt: skip
    return out_TI


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, gain_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x_TD, gain_D)
        ctx.eps = eps
        return _normed(x_TD, gain_D, eps, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, gain_D = ctx.saved_tensors
        T, D = x_TD.shape
        programs = min(T, PROGRAMS)
        grad_x_TD, grad_gain_PD = torch.empty_like(x_TD), x_TD.new_empty(programs, D)
        norm_grad_kernel[programs,](
            x_TD, gain_D, grads[0].contiguous(), grad_x_TD, grad_gain_PD, ctx.eps, T, programs,
            K=D, BLOCK=triton.next_power_of_2(D), num_warps=8,
        )  # fmt: skip
        return grad_x_TD, grad_gain_PD.sum(0).to(gain_D.dtype), None, None


class _Operands(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        turned: int,
        head_dim: int,
    ) -> Tensor:
        ctx.save_for_backward(x_TD.to(weight.dtype), weight, cos, sin)
        ctx.given, ctx.turned = (x_TD.dtype, None if bias is None else bias.dtype), turned
        return _operands(x_TD, weight, bias, cos, sin, turned, head_dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight, cos, sin = ctx.saved_tensors
        kind, of_bias = ctx.given
        grad = torch.empty_like(grads[0], dtype=weight.dtype, memory_format=torch.contiguous_format)
        _turn(grads[0].contiguous(), None, cos, sin, grad, ctx.turned, back=True)
        grad = grad.flatten(1)
        grad_bias = None if of_bias is None else grad.sum(0, dtype=torch.float32).to(of_bias)
        return (grad @ weight).to(kind), grad.T @ x_TD, grad_bias, None, None, None, None


class _Gated(torch.autograd.Function):
    """Product and gate in one, so that the gradient between them need not be float32."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_ID: Tensor) -> Tensor:
        kept = torch.empty(len(x_TD), len(weight_ID), device=x_TD.device, dtype=x_TD.dtype)
        out_TI = _activated(product(x_TD, weight_ID), kept)
        ctx.save_for_backward(x_TD, weight_ID, kept)
        return out_TI

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_ID, kept = ctx.saved_tensors
        T, inner = kept.shape[0], kept.shape[1] // 2
        grad = torch.empty_like(kept)
        silu_grad_kernel[T, triton.cdiv(inner, 2048)](
            kept, grads[0].contiguous(), grad, N=inner, BLOCK=2048, num_warps=8,
        )  # fmt: skip
        return grad @ weight_ID, grad.T @ x_TD


@triton.jit(do_not_specialize=["rows"])
def turn_kernel(
    x, bias, cos, sin, out, rows, turn_stride,
    TURNED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """A program has one head of ROWS tokens."""
    row_R, head, dim = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.arange(0, BLOCK)
    inside = (row_R < rows)[:, None] & (dim < HALF)[None, :]
    place = (row_R.to(tl.int64) * HEADS + head)[:, None] * (2 * HALF) + dim[None, :]
    a = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + place + HALF, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        a += tl.load(bias + head * (2 * HALF) + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
        b += tl.load(bias + head * (2 * HALF) + HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
    if head < TURNED:
        angle = row_R.to(tl.int64)[:, None] * turn_stride + dim[None, :]
        c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        if BACK:
            s = -s
        a, b = a * c - b * s, b * c + a * s
    tl.store(out + place, a, mask=inside)
    tl.store(out + place + HALF, b, mask=inside)


@triton.jit(do_not_specialize=["rows", "programs"])
def norm_grad_kernel(
    x, gain, grad, grad_x, grad_gain, eps, rows, programs, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program has every so many-th row, and leaves its part of the gain's gradient in a row of `grad_gain`.

    With r = 1 / rms(x), n = r x and y = n gain: dx = r (g - n mean(g n)) where g = dy gain, and dgain = sum dy n.
    """
    k = tl.arange(0, BLOCK)
    inside = k < K
    gain_K = tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    of_gain_K = tl.zeros((BLOCK,), tl.float32)
    for number in range(tl.program_id(0), rows, programs):
        place = tl.cast(number, tl.int64) * K + k
        x_K = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        dy_K = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        r = tl.rsqrt(tl.sum(x_K * x_K, 0) / K + eps)
        n_K, g_K = x_K * r, dy_K * gain_K
        tl.store(grad_x + place, r * (g_K - n_K * (tl.sum(g_K * n_K, 0) / K)), mask=inside)
        of_gain_K += dy_K * n_K
    tl.store(grad_gain + tl.program_id(0) * K + k, of_gain_K, mask=inside)


@triton.jit
def silu_grad_kernel(gate_up, grad, out, N: tl.constexpr, BLOCK: tl.constexpr):
    """Of silu(gate) * up, from what was kept of both."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    gate = tl.load(gate_up + row * 2 * N + n, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + n, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(grad + row * N + n, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    tl.store(out + row * 2 * N + n, dy * up * share * (1 + gate * (1 - share)), mask=inside)
    tl.store(out + row * 2 * N + N + n, dy * gate * share, mask=inside)
