"""Which products of the decoder take a kernel of ours, and which torch's.

Ours is for the steps of an engine on an Arm CPU: a few rows, in float32, by a matrix large enough that reading it is
what takes time. There, torch needs three to six times as long for two to nine rows as for one, so that to verify drafts
cost more than it gave (benchmarks/rows.py).

Invariant: whatever else comes goes to torch. Among products that are ours, a row's result is the same to the last bit
whatever rows are beside it.
"""

import platform
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from untail.engine.models.few_rows_kernel import Kernel

MOST = 24  # rows; from 32 on torch is about as fast
LEAST = 2**18  # numbers in a matrix; a smaller one stays in a cache
OUTPUTS, INPUTS = 2, 16  # that the kernel takes at a time
IS_ARM = platform.machine() in ("aarch64", "arm64")  # where it was measured


def linear(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    if not is_ours(x_RI, weight_OI) or (kernel := _kernel()) is None:
        return F.linear(x_RI, weight_OI, bias_O)
    x_RI = x_RI.contiguous()
    rows, (outputs, inputs) = x_RI.shape[0], weight_OI.shape
    out_RO = x_RI.new_empty(rows, outputs)
    addresses = x_RI.data_ptr(), weight_OI.data_ptr(), out_RO.data_ptr()
    kernel(*addresses, inputs, outputs, rows, torch.get_num_threads())
    return out_RO if bias_O is None else out_RO.add_(bias_O)


def is_ours(x_RI: Tensor, weight_OI: Tensor) -> bool:
    """What is most often decided by comes first: this is asked for every product of a small model, too."""
    return (
        IS_ARM
        and weight_OI.numel() >= LEAST
        and not torch.is_grad_enabled()
        and weight_OI.is_cpu
        and x_RI.ndim == 2
        and 0 < x_RI.shape[0] <= MOST
        and x_RI.dtype == weight_OI.dtype == torch.float32
        and weight_OI.is_contiguous()
        and weight_OI.shape[0] % OUTPUTS == 0
        and weight_OI.shape[1] % INPUTS == 0
    )


@cache
def _kernel() -> "Kernel | None":
    from untail.engine.models.few_rows_kernel import make_kernel  # here: only large models need LLVM

    return make_kernel()
