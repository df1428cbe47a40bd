"""Which kernels a device has of its own. None: torch's SDPA, and no graphs, which is what a CPU runs."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from untail.engine.attention.base import Attention
from untail.engine.attention.sdpa import Span
from untail.engine.decode_state import DecodeState
from untail.engine.models.decoder import Decoder
from untail.notice import say_once

HEAD_SIZES = (16, 32, 64, 128, 256)  # of which a kernel can make tiles


class Kernels(Protocol):
    widest: int  # tokens of a row in a step

    def warm_up(self, kv: Tensor) -> None:
        """Compile what fills in, with every kind of attention. Writes to the first block."""
        ...

    def attention(self, kv: Tensor, slots_T: Tensor, spans: list[Span]) -> Attention:
        """Over packed tokens in any order. `kv` is [layers, 2, blocks, BLOCK, K, D]."""
        ...

    def step(self, kv: Tensor, kept: Tensor | None, state: DecodeState, rows: int, width: int) -> Callable[[], None]:
        """Decode the first `rows` rows, one token each, and move them on; or compute and draw `width` tokens of each,
        which lie side by side, with a block table for each row. Hidden states go to `kept`, if it is there:
        [blocks, BLOCK, hidden]."""
        ...


def kernels_for(decoder: Decoder) -> Kernels | None:
    if not decoder.embed.is_cuda:
        return None
    if decoder.shape.head_dim not in HEAD_SIZES:
        say_once(
            f"heads of {decoder.shape.head_dim} have no kernel here (known: {', '.join(map(str, HEAD_SIZES))}): "
            "attention goes through SDPA, and decoding without graphs"
        )
        return None
    from untail.engine.triton_kernels import TritonKernels  # here: only a GPU needs Triton

    return TritonKernels(decoder)
