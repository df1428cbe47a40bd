"""What the decoder asks of an attention: the one place that knows which token may look at which."""

from typing import Protocol

import torch
from torch import Tensor


def operand_dtype(weights: torch.dtype) -> torch.dtype:
    """Of what attention multiplies, and so of kept keys and values. fp16 beside bf16 weights too: it costs the same and
    rounds eight times finer, and queries, keys and values do not need bf16's range."""
    return torch.float16 if weights == torch.bfloat16 else weights


class Attention(Protocol):
    """Made for one forward pass over T packed tokens.

    Pre: q is [T, H, D], k and v are [T, K, D] with H a multiple of K, rotary positions applied, in the order of the
    packed tokens. Post: [T, H * D]; token t has seen itself and the earlier tokens of its own sequence and nothing
    else. An implementation with a cache stores k and v before it reads.
    """

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor: ...
