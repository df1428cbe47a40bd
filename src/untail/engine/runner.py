"""One step on the device: lay out the planned tokens, run the decoder over them, sample where a sequence has caught up.

Invariant: the runner holds the KV tensor, and for drafters the hidden states beside it, and nothing else that outlives
a step; who owns which block is the scheduler's.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from untail.engine.attention.base import Attention, operand_dtype
from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch, packing_order
from untail.engine.blocks import BLOCK
from untail.engine.device_kernels import kernels_for
from untail.engine.models.decoder import Decoder
from untail.engine.sampler import Sampled, sample
from untail.engine.scheduler import Plan, Work
from untail.engine.sequence import Sequence
from untail.engine.verify import VerifyGraphs


class Piece(NamedTuple):
    """Tokens `ids` of one sequence, at positions `begin` and on."""

    blocks: list[int]
    begin: int
    ids: list[int]


class Layout(NamedTuple):
    """T packed tokens of several sequences: the pieces in `order`, the last row of each in `last`."""

    ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    spans: list[Span]
    order: list[int]
    last: list[int]


class Drawn(NamedTuple):
    """A sequence that sampled, its drafts, and its rows of what was sampled: one, and one more for each draft."""

    sequence: Sequence
    drafts: list[int]
    rows: range


class Result(NamedTuple):
    drawn: list[Drawn]
    sampled: Sampled
    hidden_RD: Tensor


class Runner:
    def __init__(self, decoder: Decoder, blocks: int, keeps_hidden: bool = False):
        """`keeps_hidden`: what the output head sees of every computed token stays beside its keys and values."""
        self.decoder = decoder
        self.blocks = blocks
        self.keeps_hidden = keeps_hidden
        self.kernels = kernels_for(decoder)
        self.kv: Tensor | None = None
        self.hidden: Tensor | None = None
        self.verifier: VerifyGraphs | None = None
        self.allocate()

    @staticmethod
    def block_bytes(decoder: Decoder) -> int:
        shape = decoder.shape
        return shape.layers * 2 * BLOCK * shape.kv_size * operand_dtype(decoder.embed.dtype).itemsize

    def allocate(self) -> None:
        shape, embed = self.decoder.shape, self.decoder.embed
        size = (shape.layers, 2, self.blocks, BLOCK, shape.kv_heads, shape.head_dim)
        self.kv = torch.zeros(size, dtype=operand_dtype(embed.dtype), device=embed.device)
        self.scratch = make_scratch(self.kv)
        if self.keeps_hidden:
            self.hidden = torch.zeros(self.blocks, BLOCK, shape.hidden, dtype=embed.dtype, device=embed.device)
        if self.kernels is not None:
            self.verifier = VerifyGraphs(self.kernels, self.kv, self.hidden, shape.context)

    def free(self) -> None:
        self.kv = self.hidden = self.verifier = None
        if self.decoder.embed.is_cuda:
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def warm_up(self, drafted_for: int = 0) -> None:
        """`drafted_for`: at most so many sequences at once. Pre: nobody's keys and values are there yet."""
        if self.kernels is not None and self.kv is not None:
            self.kernels.warm_up(self.kv)
        if self.verifier is not None and drafted_for:
            self.verifier.warm_up(drafted_for)

    @torch.inference_mode()
    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Whole blocks, (from, to): copy-on-write, before anything is written."""
        assert self.kv is not None, "the engine sleeps; wake it first"
        for source, target in copies:
            self.kv[:, :, target] = self.kv[:, :, source]
            if self.hidden is not None:
                self.hidden[target] = self.hidden[source]

    @torch.inference_mode()
    def run(self, plan: Plan) -> Result:
        assert self.kv is not None, "the engine sleeps; wake it first"
        if self.verifier is not None and self.verifier.takes(plan.work):
            return self._verify(plan.work, self.verifier)
        layout = self.lay_out([_piece(work) for work in plan.work])
        hidden_TD = self.decoder(layout.ids_T, layout.positions_T, self.attend(layout, self.kv))
        if self.hidden is not None:
            self.hidden.view(-1, hidden_TD.shape[-1]).index_copy_(0, layout.slots_T, hidden_TD)
        drawn, rows = _rows_to_sample(plan.work, layout)
        hidden_RD = hidden_TD[torch.tensor(rows, dtype=torch.int64, device=hidden_TD.device)]
        if not drawn:
            return Result([], Sampled([], [], []), hidden_RD)
        sequences, drafts = [one.sequence for one in drawn], [one.drafts for one in drawn]
        return Result(drawn, sample(self.decoder.logits(hidden_RD), sequences, drafts), hidden_RD)

    def _verify(self, work: list[Work], verifier: VerifyGraphs) -> Result:
        """Nothing is filled in, and graphs are wide enough for every draft."""
        drawn: list[Drawn] = []
        for one in work:
            begin = drawn[-1].rows.stop if drawn else 0
            drawn.append(Drawn(one.sequence, one.drafts, range(begin, begin + 1 + len(one.drafts))))
        return Result(drawn, verifier.run(work), self.decoder.embed[:0])

    def attend(self, layout: Layout, kv: Tensor) -> Attention:
        """Over keys and values of the same blocks, those of the decoder or a drafter's own."""
        shape = self.decoder.shape
        if self.kernels is not None:
            return self.kernels.attention(kv, layout.slots_T, layout.spans)
        scratch = self.scratch if kv.dtype == self.scratch.dtype else make_scratch(kv)
        return PagedSdpa(kv, scratch, layout.slots_T, layout.spans, shape.heads // shape.kv_heads)

    def lay_out(self, pieces: list[Piece]) -> Layout:
        """Packed in the order that the attention expects."""
        order = packing_order([(len(piece.ids), piece.begin) for piece in pieces])
        ids: list[int] = []
        positions: list[np.ndarray] = []
        slots: list[np.ndarray] = []
        spans, last = [], []
        for blocks, begin, new in map(pieces.__getitem__, order):
            ids += new
            where = np.arange(begin, begin + len(new))
            positions.append(where)
            slots.append(np.asarray(blocks[begin // BLOCK :])[where // BLOCK - begin // BLOCK] * BLOCK + where % BLOCK)
            spans.append(Span(len(new), begin + len(new), blocks))
            last.append(len(ids) - 1)
        device = self.decoder.embed.device
        on_device = lambda array: torch.from_numpy(array).to(device, non_blocking=True)
        return Layout(
            on_device(np.asarray(ids)),
            on_device(np.concatenate(positions)),
            on_device(np.concatenate(slots)),
            spans,
            order,
            last,
        )


def _piece(work: Work) -> Piece:
    sequence = work.sequence
    known = sequence.tokens[sequence.computed : sequence.computed + work.size]
    return Piece(sequence.blocks, sequence.computed, known + work.drafts)


def _rows_to_sample(work: list[Work], layout: Layout) -> tuple[list[Drawn], list[int]]:
    """Who has caught up draws from its last known token's row, and from those of its drafts."""
    drawn: list[Drawn] = []
    rows: list[int] = []
    for index, last in zip(layout.order, layout.last, strict=True):
        one = work[index]
        if one.catches_up:
            width = 1 + len(one.drafts)
            drawn.append(Drawn(one.sequence, one.drafts, range(len(rows), len(rows) + width)))
            rows += range(last + 1 - width, last + 1)
    return drawn, rows
