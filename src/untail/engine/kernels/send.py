"""Weights on their way into L2 while a kernel that waits for little else runs (Hopper and later).

Invariant: nothing is read or written; a kernel computes the same with or without. A kernel over few tokens is a chain
of loads that wait for one another and leaves memory idle, though what the next product reads is known: further programs
of the same kernel send for it.
"""

import triton
import triton.language as tl
from torch import Tensor

PIECE = 2**17  # bytes that a program sends for


@triton.jit
def send_for(weights, piece):
    """That piece of the weights, a KiB by each of 128 threads."""
    place = weights.to(tl.int64) + (piece * 128 + tl.arange(0, 128)).to(tl.int64) * 1024
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 1024; mov.b32 $0, 0;", "=r,l", [place], tl.int32, is_pure=False, pack=1
    )


def pieces_of(weights: Tensor | None, most: int, programs: int = 1) -> int:
    """How many pieces each of so many programs sends for, for at most so many bytes."""
    if weights is None:
        return 0
    return min(most, weights.numel() * weights.element_size()) // (PIECE * programs)
