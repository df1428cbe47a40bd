"""Which products of the decoder take a kernel of ours, and which torch's.

Ours is for the steps of an engine on an Arm CPU: a few rows, in float32, by a matrix large enough that reading it is
what takes time. There, torch needs 2.8 to 6 times as long for two to nine rows as for one, so that to verify drafts
cost more than it gave (benchmarks/rows.py).

Invariant: whatever else comes goes to torch. Among products that are ours, a row's result is the same to the last bit
whatever rows are beside it.
"""

import platform
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from untail.notice import say_once

if TYPE_CHECKING:
    from untail.engine.models.few_rows_kernel import Kernel

MOST = 24  # rows; at 32 torch is about as fast
LEAST = 2**18  # numbers in a matrix; a smaller one stays in a cache
PAIR, LINE = 2, 16  # outputs and inputs that the kernel takes at a time
IS_ARM = platform.machine() in ("aarch64", "arm64")  # where it was measured
PLAIN = (Tensor, nn.Parameter)  # others, such as shards and fakes, have no memory of their own here


def linear(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    if not is_ours(x_RI, weight_OI) or (kernel := _kernel()) is None:
        return F.linear(x_RI, weight_OI)
    x_RI = x_RI.contiguous()
    rows, (outputs, inputs) = x_RI.shape[0], weight_OI.shape
    out_RO = x_RI.new_empty(rows, outputs)
    addresses = x_RI.data_ptr(), weight_OI.data_ptr(), out_RO.data_ptr()
    kernel(*addresses, inputs, outputs, rows, torch.get_num_threads())
    return out_RO


def is_ours(x_RI: Tensor, weight_OI: Tensor) -> bool:
    """What is most often decided by comes first: this is asked for every product of a small model, too."""
    return (
        IS_ARM
        and weight_OI.numel() >= LEAST
        and not torch.is_grad_enabled()
        and all(type(one) in PLAIN for one in (x_RI, weight_OI))
        and x_RI.is_cpu
        and weight_OI.is_cpu
        and x_RI.ndim == weight_OI.ndim == 2
        and 0 < x_RI.shape[0] <= MOST
        and x_RI.shape[1] == weight_OI.shape[1]
        and x_RI.dtype == weight_OI.dtype == torch.float32
        and weight_OI.is_contiguous()
        and weight_OI.shape[0] % PAIR == 0
        and weight_OI.shape[1] % LINE == 0
    )


@cache
def _kernel() -> "Kernel | None":
    try:
        from untail.engine.models.few_rows_kernel import Kernel  # here: only large models need LLVM

        return Kernel()
    except Exception as error:  # whatever it is, torch can multiply, too
        say_once(
            f"products of a few rows are torch's, which makes drafts slow: LLVM made no kernel ({error!r}); try "
            "`pip install llvmlite`"
        )
        return None
