"""Rotary position tables: cos and sin for every position of the context, computed once in float32.

The frequency rules (plain, linear, llama3, yarn) are those of the models' own releases, so that tokens equal
transformers' to rounding.
"""

import math

import torch
from torch import Tensor

from untail.engine.models.shape import Rope, yarn_attention_factor


def cos_sin_table(rope: Rope, head_dim: int, context: int, device: torch.device) -> Tensor:
    """[context, 2, 1, head_dim / 2]: cos then sin, ready to broadcast over heads."""
    positions = torch.arange(context, dtype=torch.float32, device=device)
    angles = positions[:, None] * _inverse_frequencies(rope, head_dim).to(device)
    scale = yarn_attention_factor(rope) if rope.kind == "yarn" else 1.0
    return (torch.stack((angles.cos(), angles.sin()), dim=1) * scale)[:, :, None, :].contiguous()


def rotate(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    first, second = x_THD.chunk(2, dim=-1)
    return torch.cat((first * cos_T1D - second * sin_T1D, second * cos_T1D + first * sin_T1D), dim=-1)


def _inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    match rope.kind:
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(rope, plain)
        case "yarn":
            return _yarn(rope, plain, head_dim)
        case _:
            return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    turns = rope.original_context * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: Rope, plain: Tensor, head_dim: int) -> Tensor:
    """Dimensions that turn often keep their frequency, those that turn rarely are interpolated, a ramp between."""

    def dimension_that_turns(times: float) -> float:
        return head_dim * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(dimension_that_turns(rope.beta_slow)), head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)
