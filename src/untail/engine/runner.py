"""One step on the device: lay out the planned tokens, run the decoder over them, sample where a sequence has caught up.

Invariant: the runner holds the KV tensor and nothing else that outlives a step; who owns which block is the
scheduler's.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch
from untail.engine.blocks import BLOCK
from untail.engine.models.decoder import Decoder
from untail.engine.sampler import Sampled, sample
from untail.engine.scheduler import Plan, Work
from untail.engine.sequence import Sequence


class Step(NamedTuple):
    """What `prepare` lays out: T packed tokens, and the rows of them whose logits are wanted."""

    ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    spans: list[Span]
    rows_R: Tensor
    sampling: list[Sequence]


class Result(NamedTuple):
    sampling: list[Sequence]
    sampled: Sampled
    hidden_RD: Tensor


class Runner:
    def __init__(self, decoder: Decoder, blocks: int):
        self.decoder = decoder
        self.blocks = blocks
        self.kv: Tensor | None = None
        self.allocate()

    @staticmethod
    def block_bytes(decoder: Decoder) -> int:
        shape = decoder.shape
        return shape.layers * 2 * BLOCK * shape.kv_size * decoder.embed.element_size()

    def allocate(self) -> None:
        shape, embed = self.decoder.shape, self.decoder.embed
        size = (shape.layers, 2, self.blocks, BLOCK, shape.kv_heads, shape.head_dim)
        self.kv = torch.zeros(size, dtype=embed.dtype, device=embed.device)
        self.scratch = make_scratch(self.kv)

    def free(self) -> None:
        self.kv = None

    @torch.inference_mode()
    def run(self, plan: Plan) -> Result:
        assert self.kv is not None, "the engine sleeps; wake it first"
        for source, target in plan.copies:
            self.kv[:, :, target] = self.kv[:, :, source]
        step = self.prepare(plan.work)
        shape = self.decoder.shape
        attention = PagedSdpa(self.kv, self.scratch, step.slots_T, step.spans, shape.heads // shape.kv_heads)
        hidden_TD = self.decoder(step.ids_T, step.positions_T, attention)
        hidden_RD = hidden_TD[step.rows_R]
        if not step.sampling:
            return Result([], Sampled([], []), hidden_RD)
        return Result(step.sampling, sample(self.decoder.logits(hidden_RD), step.sampling), hidden_RD)

    def prepare(self, work: list[Work]) -> Step:
        """Decoding sequences first, shortest context first (what `PagedSdpa` expects), then chunks."""
        work = sorted(work, key=lambda item: (item.size > 1, item.sequence.computed))
        ids: list[int] = []
        positions: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        spans, rows, sampling = [], [], []
        for sequence, count in work:
            begin, end = sequence.computed, sequence.computed + count
            ids += sequence.tokens[begin:end]
            where = np.arange(begin, end)
            positions.append(where)
            slots.append(
                np.asarray(sequence.blocks[begin // BLOCK :])[where // BLOCK - begin // BLOCK] * BLOCK + where % BLOCK
            )
            spans.append(Span(count, end, sequence.blocks))
            if end == len(sequence.tokens):
                rows.append(len(ids) - 1)
                sampling.append(sequence)
        device = self.decoder.embed.device
        on_device = lambda array: torch.from_numpy(array).to(device, non_blocking=True)
        return Step(
            on_device(np.asarray(ids)),
            on_device(np.concatenate(positions)),
            on_device(np.concatenate(slots)),
            spans,
            on_device(np.asarray(rows, dtype=np.int64)),
            sampling,
        )
