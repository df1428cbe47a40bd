"""Paged attention with torch's SDPA: the reference, and what runs on a CPU.

Invariant: tokens come in `packing_order`: first sequences with few new tokens each (one decodes, several verify
drafts), those with equally many together, shortest context first; then longer chunks one sequence after another. Keys
and values of all new tokens are written before any is read.

Sequences with equally many new tokens and similar length are attended together: their blocks are gathered side by
side, and the query heads that share a key-value head become rows of one query, so that keys are never repeated. They
are gathered into the same scratch memory each time, a piece that fits a CPU's cache: fresh memory for all of a large
batch would cost more in page faults than the attention itself.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.engine.blocks import BLOCK, blocks_for

SCRATCH_BYTES = 2 * 2**20  # of keys, and of values
FEW = 33  # new tokens of a sequence that is attended together with others


class Span(NamedTuple):
    """One sequence's share of the packed tokens."""

    size: int  # tokens in this step
    context: int  # tokens it attends to in the end, the new ones included
    blocks: list[int]


class Alike(NamedTuple):
    """Sequences that are attended together: the packed tokens from `begin` to `end`, `width` of each."""

    begin: int
    end: int
    width: int
    blocks: Tensor  # [sequences * blocks per sequence]
    mask: Tensor  # [sequences, 1, 1 or heads per key-value head * width, padded context], 0 or -inf


class PrefillChunk(NamedTuple):
    begin: int
    end: int
    context: int
    blocks: Tensor | None  # None: no earlier context, attend among the new tokens
    mask: Tensor | None  # [heads per key-value head * tokens, context]


class PagedSdpa:
    def __init__(self, kv: Tensor, scratch: Tensor, slots_T: Tensor, spans: list[Span], heads_per_kv: int):
        """`kv` is [layers, 2, blocks, BLOCK, K, D]; `slots_T` says where in it each new token goes; `scratch` is from
        `make_scratch`."""
        self.kv = kv
        self.scratch = scratch
        self.slots_T = slots_T
        self.heads_per_kv = heads_per_kv
        self.groups: list[Alike] = []
        self.chunks: list[PrefillChunk] = []
        few = next((i for i, span in enumerate(spans) if not _is_few(span.size, span.context)), len(spans))
        begin = 0
        for first, last in similar_lengths(spans[:few], scratch.shape[1]):
            self.groups.append(self._alike(spans[first:last], begin))
            begin = self.groups[-1].end
        for span in spans[few:]:
            self.chunks.append(self._chunk(span, begin))
            begin += span.size

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self.kv[layer]
        size = keys.shape[-2:]
        keys.view(-1, *size).index_copy_(0, self.slots_T, k_TKD)
        values.view(-1, *size).index_copy_(0, self.slots_T, v_TKD)
        parts = [self._together(group, q_THD, keys, values) for group in self.groups]
        parts += [self._prefill(chunk, q_THD, k_TKD, v_TKD, keys, values) for chunk in self.chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _together(self, group: Alike, q_THD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        tokens, (kv_heads, size) = group.end - group.begin, keys.shape[-2:]
        count = tokens // group.width
        q = q_THD[group.begin : group.end].reshape(count, group.width, kv_heads, self.heads_per_kv, size)
        q = q.permute(0, 2, 3, 1, 4).reshape(count, kv_heads, -1, size)
        k = self._gather(keys, group.blocks, self.scratch[0]).view(count, -1, kv_heads, size).transpose(1, 2)
        v = self._gather(values, group.blocks, self.scratch[1]).view(count, -1, kv_heads, size).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        out = out.reshape(count, kv_heads, self.heads_per_kv, group.width, size)
        return out.permute(0, 3, 1, 2, 4).reshape(tokens, -1)

    @staticmethod
    def _gather(pool: Tensor, blocks: Tensor, scratch: Tensor) -> Tensor:
        """One long sequence alone may not fit the scratch memory."""
        fits = len(blocks) <= len(scratch)
        return torch.index_select(pool, 0, blocks, out=scratch[: len(blocks)] if fits else None)

    def _prefill(
        self, chunk: PrefillChunk, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        new, (kv_heads, size) = slice(chunk.begin, chunk.end), keys.shape[-2:]
        q = q_THD[new]
        if chunk.blocks is None:
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k_TKD[new], v_TKD[new]))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out[0].transpose(0, 1).reshape(len(k_TKD[new]), -1)
        count = len(q)
        q = q.view(count, kv_heads, self.heads_per_kv, size).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, size)
        k = keys.index_select(0, chunk.blocks).view(-1, kv_heads, size)[: chunk.context].transpose(0, 1)[None]
        v = values.index_select(0, chunk.blocks).view(-1, kv_heads, size)[: chunk.context].transpose(0, 1)[None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=chunk.mask)
        return out.view(kv_heads, self.heads_per_kv, count, size).permute(2, 0, 1, 3).reshape(count, -1)

    def _alike(self, members: list[Span], begin: int) -> Alike:
        width = members[0].size
        blocks = max(blocks_for(span.context) for span in members)
        table = [span.blocks[:blocks] + [0] * (blocks - len(span.blocks)) for span in members]
        seen = torch.tensor([[span.context] for span in members]) - torch.arange(width).flip(0)  # by each new token
        beyond = torch.arange(blocks * BLOCK) >= seen[..., None]
        mask = torch.zeros(beyond.shape, dtype=self.kv.dtype).masked_fill_(beyond, float("-inf"))
        if width > 1:
            mask = mask.repeat(1, self.heads_per_kv, 1)
        flat = torch.tensor(table).flatten().to(self.kv.device)
        return Alike(begin, begin + len(members) * width, width, flat, mask[:, None].to(self.kv.device))

    def _chunk(self, span: Span, begin: int) -> PrefillChunk:
        end = begin + span.size
        if span.size == span.context:
            return PrefillChunk(begin, end, span.context, None, None)
        first = span.context - span.size
        allowed = torch.arange(span.context) <= torch.arange(first, span.context)[:, None]
        blocks = torch.tensor(span.blocks[: blocks_for(span.context)], device=self.kv.device)
        return PrefillChunk(begin, end, span.context, blocks, allowed.repeat(self.heads_per_kv, 1).to(self.kv.device))


def make_scratch(kv: Tensor) -> Tensor:
    """[2, blocks, BLOCK, K, D]: room for the keys and for the values of one run."""
    block = kv[0, 0, 0]
    return kv.new_empty(2, max(1, SCRATCH_BYTES // (block.numel() * kv.element_size())), *block.shape)


def similar_lengths(spans: list[Span], most_blocks: int) -> list[tuple[int, int]]:
    """Cut the spans (in packing order) into runs of equally many new tokens, whose longest is not much longer than
    their shortest, and which have at most `most_blocks` blocks in all, unless it is one span alone.

    Gathering padding costs time in proportion to its tokens, a further group costs a few calls: half as much again, or
    four blocks, is where the two meet on a CPU.
    """
    runs: list[tuple[int, int]] = []
    begin = 0
    for index, span in enumerate(spans):
        shortest, width = blocks_for(spans[begin].context), blocks_for(span.context)
        is_full = (index - begin + 1) * width > most_blocks and index > begin
        if is_full or span.size != spans[begin].size or width > max(shortest * 3 // 2, shortest + 4):
            runs.append((begin, index))
            begin = index
    return [*runs, (begin, len(spans))] if spans else []


def packing_order(pieces: list[tuple[int, int]]) -> list[int]:
    """In which order (new tokens, tokens before them) are packed."""
    return sorted(range(len(pieces)), key=lambda i: (not _is_few(pieces[i][0], sum(pieces[i])), *pieces[i]))


def _is_few(size: int, context: int) -> bool:
    return size == 1 or (size <= FEW and size < context)
