"""Products of half-precision operands whose sums leave in float32.

Engine and learner add up in different orders, and whatever is rounded afterwards makes them differ by one bit of bf16
here and there; a few layers on, everything differs by that. So only what a product or attention takes is in half
precision, and the small products on either side of attention take twice the bits: beside bf16 weights, unless the model
is wide, their operand is the sum of two halves, each multiplied. Steps of one or two rows read less instead: their
products take a rounded copy of the stream (fused.py).

Invariant: results are in float32 or better. Weights in float32 or better go torch's way (few_rows.py).
"""

from typing import Any

import torch
from torch import Tensor

from untail.engine.models.few_rows import linear

HALF = (torch.bfloat16, torch.float16)
WIDE = 2048  # hidden numbers; beyond that, twice the arithmetic is 6 % of a step of 256 rows


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def fine_dtype(weights: torch.dtype, hidden: int) -> torch.dtype:
    """Of what the products around attention take: bf16 alone is coarse."""
    return torch.float32 if weights == torch.bfloat16 and hidden <= WIDE else weights


def product(x_RI: Tensor, weight_OI: Tensor, onto_RO: Tensor | None = None) -> Tensor:
    """x W^T, added to `onto_RO` if that is there. Differentiable. An x of more bits than the weights is taken in two
    halves."""
    if weight_OI.dtype not in HALF:
        out_RO = linear(x_RI, weight_OI)
        return out_RO if onto_RO is None else onto_RO + out_RO
    if torch.is_grad_enabled():
        return _Product.apply(x_RI, weight_OI, onto_RO)
    return _sums(x_RI, weight_OI, onto_RO)


def product_into(out_RO: Tensor, x_RI: Tensor, weight_OI: Tensor, add: bool = False) -> None:
    """The same to where a captured graph looks for it, in place of what is there or added to it."""
    if x_RI.dtype != out_RO.dtype and not x_RI.is_cuda:
        out_RO.copy_(_sums(x_RI, weight_OI, out_RO if add else None))
        return
    kind: dict[str, Any] = {} if x_RI.dtype == out_RO.dtype else {"out_dtype": out_RO.dtype}
    if add:
        torch.addmm(out_RO, x_RI, weight_OI.T, out=out_RO, **kind)
    else:
        torch.mm(x_RI, weight_OI.T, out=out_RO, **kind)


def _sums(x_RI: Tensor, weight_OI: Tensor, onto_RO: Tensor | None = None) -> Tensor:
    """A GPU sums in float32 and can leave it at that; a CPU has to multiply in float32."""
    if not x_RI.is_cuda:
        out_RO = x_RI.float() @ weight_OI.float().T
        return out_RO if onto_RO is None else onto_RO + out_RO
    if x_RI.dtype != weight_OI.dtype:
        from untail.engine.kernels.elementwise import halves  # here: only a GPU needs Triton

        high_RI, low_RI = halves(x_RI, weight_OI.dtype)
        out_RO = _sums(high_RI, weight_OI, onto_RO)
        product_into(out_RO, low_RI, weight_OI, add=True)
        return out_RO
    if onto_RO is None:
        return torch.mm(x_RI, weight_OI.T, out_dtype=torch.float32)
    return torch.addmm(onto_RO, x_RI, weight_OI.T, out_dtype=torch.float32)


class _Product(torch.autograd.Function):
    """Gradients of operands are in their precision, as torch's own are; that of `onto_RO` is passed on."""

    @staticmethod
    def forward(ctx: Any, x_RI: Tensor, weight_OI: Tensor, onto_RO: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_RI.to(weight_OI.dtype), weight_OI)
        ctx.dtype = x_RI.dtype
        return _sums(x_RI, weight_OI, onto_RO)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_RI, weight_OI = ctx.saved_tensors
        grad_RO = grads[0].to(weight_OI.dtype)
        of_x, of_weight, of_onto = ctx.needs_input_grad
        return (
            (grad_RO @ weight_OI).to(ctx.dtype) if of_x else None,
            grad_RO.T @ x_RI if of_weight else None,
            grads[0] if of_onto else None,
        )
