"""Which attention a packed pass goes through: the flash kernel for sequences of any length, or the plain one.

Invariant: both see the same sequences and give the same output to rounding. The kernel takes bf16 and fp16 on a GPU and
heads up to 256; everything else goes the plain way, in one call for each run of equal lengths. It shares keys and
values between grouped queries.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from untail.engine.attention.varlen import VarlenAttention

LARGEST_HEAD = 256
CAUSAL = (-1, 0)
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
