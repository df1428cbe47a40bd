"""The kernels of a GPU, as the engine asks for them (device_kernels.py)."""

from collections.abc import Callable

import torch
from torch import Tensor

from untail.engine.attention.base import Attention
from untail.engine.attention.sdpa import Span
from untail.engine.attention.triton_paged import KEYS, MOST_ROWS, TritonPaged
from untail.engine.blocks import blocks_for
from untail.engine.decode_state import DecodeState
from untail.engine.fused import FusedStep, PlainStep, Workspace, can_fuse
from untail.engine.models.decoder import Decoder

FUSED_ROWS = 2  # up to these, fused kernels beat a library's products


class TritonKernels:
    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        embed = decoder.embed
        # Kernels that start while the one before still runs: Hopper and later.
        self.chained = embed.is_cuda and torch.cuda.get_device_capability(embed.device)[0] >= 9
        self.widest = MOST_ROWS // (decoder.shape.heads // decoder.shape.kv_heads)
        self._workspace: Workspace | None = None

    def warm_up(self, kv: Tensor) -> None:
        for tokens in (1, 2):  # decoded only, or filled in too
            for context in (tokens, KEYS + 1):  # in one piece, or in splits
                span = Span(tokens, context, [0] * blocks_for(context))
                slots_T = torch.zeros(tokens, dtype=torch.int64, device=kv.device)
                self.decoder(slots_T, slots_T, self.attention(kv, slots_T, [span]))

    def attention(self, kv: Tensor, slots_T: Tensor, spans: list[Span]) -> Attention:
        return TritonPaged(kv, slots_T, spans, self.decoder.shape.heads // self.decoder.shape.kv_heads)

    def step(self, kv: Tensor, kept: Tensor | None, state: DecodeState, rows: int, width: int) -> Callable[[], None]:
        if width == 1 and rows <= FUSED_ROWS and can_fuse(self.decoder.shape):
            return FusedStep(self.decoder, kv, state, rows, self.chained, kept=kept)
        space = self._space(len(state.ids))
        return PlainStep(self.decoder, kv, state, rows, self.chained, width, space, kept=kept)

    def _space(self, tokens: int) -> Workspace:
        """One for all steps: they run one after another. Steps made before it grew keep theirs."""
        if self._workspace is None or self._workspace.tokens < tokens:
            self._workspace = Workspace.make(self.decoder, tokens)
        return self._workspace
