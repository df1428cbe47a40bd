"""Paged attention in one Triton kernel: prefill, decode and verification alike.

Invariant: a query tile is up to ROWS (token, head) pairs of one sequence that share a key-value head; token t sees keys
0 to t of its own sequence, found through the block table, and nothing else. Long contexts are cut into splits that run
side by side; the last of a tile's splits to finish adds them up, so that there is no second kernel and no host decides
anything: the same launch is right for any context, which is what a captured graph needs.

Pre: head size a power of two from 16 to 256; `supports` says so.
"""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from untail.engine.attention.sdpa import Span
from untail.engine.blocks import BLOCK
from untail.engine.device_kernels import HEAD_SIZES
from untail.engine.kernels.chain import start, wait
from untail.engine.kernels.elementwise import store_halves

LOG2_E = 1.4426950408889634
KEYS = 64  # keys looked at in one go
MOST_SPLITS = 16
FILLS = 6  # of the device with programs
MOST_ROWS = 64  # of a tile


def supports(head_dim: int) -> bool:
    return head_dim in HEAD_SIZES


@triton.jit
def places(block_N, key_N, kv_head, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr):
    """Where in a layer's keys, and in its values, those keys are: [N, HEAD]."""
    slot_N = (block_N.to(tl.int64) * PAGE + key_N % PAGE) * (KV_HEADS * HEAD) + kv_head * HEAD
    return slot_N[:, None] + tl.arange(0, HEAD)[None, :]


@triton.jit
def attend(q_RH, k_NH, v_NH, key_N, position_R, end, most_R, sum_R, out_RH, scale_log2):
    """Take these keys into a row's maximum, sum and weighted values. Pre: values from `end` on are 0, since beyond it
    lies whatever was there, and 0 x NaN would count."""
    score_RN = tl.dot(q_RH, tl.trans(k_NH), input_precision="ieee") * scale_log2
    sees_RN = (key_N[None, :] <= position_R[:, None]) & (key_N < end)[None, :]
    score_RN = tl.where(sees_RN, score_RN, float("-inf"))
    new_R = tl.maximum(most_R, tl.max(score_RN, 1))
    base_R = tl.where(new_R == float("-inf"), 0.0, new_R)  # a row that sees none of these keys stays empty
    share_R = tl.exp2(most_R - base_R)
    weight_RN = tl.exp2(score_RN - base_R[:, None])
    out_RH = tl.dot(weight_RN.to(v_NH.dtype), v_NH, out_RH * share_R[:, None], input_precision="ieee")
    return new_R, sum_R * share_R + tl.sum(weight_RN, 1), out_RH


@triton.jit
def tile_of(tile, contexts, query_starts, tile_sequences, tile_tokens, WIDTH: tl.constexpr):
    """A tile's sequence, the first token of it there, how many it has and where they begin, and its context."""
    if WIDTH:
        sequence, first_token, tokens, begin = tile, 0, WIDTH, tile * WIDTH
        context = tl.load(contexts + tile * WIDTH).to(tl.int32) + WIDTH
    else:
        sequence, first_token = tl.load(tile_sequences + tile), tl.load(tile_tokens + tile)
        begin = tl.load(query_starts + sequence)
        tokens = tl.load(query_starts + sequence + 1) - begin
        context = tl.load(contexts + sequence)
    return sequence, first_token, tokens, begin, context


@triton.jit
def nothing(ROWS: tl.constexpr, HEAD: tl.constexpr):
    """What was seen before the first key: maximum, sum and weighted values."""
    return (
        tl.full((ROWS,), float("-inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
        tl.zeros((ROWS, HEAD), tl.float32),
    )


@triton.jit
def leave(partial, sums, mine, is_row_R, row, place_RH, most_R, sum_R, out_RH, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """A split's share, for whoever adds them up: [tiles, KV_HEADS, SPLITS, ROWS, HEAD], and [.., 2, ROWS] for sums."""
    tl.store(partial + mine.to(tl.int64) * (ROWS * HEAD) + place_RH, out_RH, mask=is_row_R[:, None])
    tl.store(sums + mine * 2 * ROWS + row, most_R)
    tl.store(sums + mine * 2 * ROWS + ROWS + row, sum_R)
    tl.debug_barrier()


@triton.jit
def add_up(
    partial, sums, place, live_splits, is_row_R, row, place_RH,
    ROWS: tl.constexpr, HEAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """All splits of a tile, from where they left their shares: sum and weighted values. Unrolled, so that all loads are
    on their way together."""
    most_R, sum_R, out_RH = nothing(ROWS, HEAD)
    for other in tl.static_range(SPLITS):
        their_most = sums + (place + other) * 2 * ROWS + row
        is_there_R = is_row_R & (row * 0 + other < live_splits)
        most_R = tl.maximum(most_R, tl.load(their_most, mask=is_there_R, other=float("-inf"), cache_modifier=".cg"))
    most_R = tl.where(most_R == float("-inf"), 0.0, most_R)  # padding
    for other in tl.static_range(SPLITS):
        their_most = sums + (place + other) * 2 * ROWS + row
        is_there_R = is_row_R & (row * 0 + other < live_splits)
        share_R = tl.exp2(tl.load(their_most, mask=is_there_R, other=float("-inf"), cache_modifier=".cg") - most_R)
        sum_R += share_R * tl.load(their_most + ROWS, mask=is_there_R, other=0.0, cache_modifier=".cg")
        their_out = partial + (place + other).to(tl.int64) * (ROWS * HEAD) + place_RH
        out_RH += share_R[:, None] * tl.load(their_out, mask=is_there_R[:, None], other=0.0, cache_modifier=".cg")
    return sum_R, out_RH


@triton.jit
def paged_kernel(
    q, keys, values, out, tables, contexts, query_starts, tile_sequences, tile_tokens, partial, sums, arrivals,
    table_stride, scale_log2, low,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    TWICE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Split s of a tile looks at blocks s, s + SPLITS, ... of KEYS keys: its first is known before the context is.

    With a WIDTH, tile i is sequence i with so many tokens, and `contexts` holds every token's position. EARLY, for a
    WIDTH of 1: positions and all keys but the token's own are there before the kernel before this one is done.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start(CHAINED)
    row, dim, key = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, KEYS)
    key_N = split * KEYS + key
    if not EARLY:
        wait(CHAINED)
    sequence, first_token, tokens, begin, context = tile_of(
        tile, contexts, query_starts, tile_sequences, tile_tokens, WIDTH
    )
    table = tables + sequence.to(tl.int64) * table_stride
    block_N = tl.load(table + key_N // PAGE, mask=key_N // PAGE < table_stride, other=0)
    place_NH = places(block_N, key_N, kv_head, KV_HEADS, HEAD, PAGE)
    k_NH, v_NH = tl.load(keys + place_NH), tl.load(values + place_NH)
    if EARLY:
        own_N = context - 1 + tl.arange(0, 1)
        own_NH = places(tl.load(table + own_N // PAGE), own_N, kv_head, KV_HEADS, HEAD, PAGE)
        wait(CHAINED)
        is_own_N1 = (key_N == own_N)[:, None]
        k_NH = tl.where(is_own_N1, tl.load(keys + own_NH), k_NH)
        v_NH = tl.where(is_own_N1, tl.load(values + own_NH), v_NH)
    token_R, head_R = first_token + row // GROUP, kv_head * GROUP + row % GROUP
    is_row_R = (token_R < tokens) & (row < (ROWS // GROUP) * GROUP)
    q_offset_RH = ((begin + token_R) * (KV_HEADS * GROUP) + head_R)[:, None].to(tl.int64) * HEAD + dim[None, :]
    q_RH = tl.load(q + q_offset_RH, mask=is_row_R[:, None], other=0.0)
    position_R = context - tokens + token_R
    end = tl.minimum(context, context - tokens + first_token + ROWS // GROUP)  # keys the tile's last token sees
    live_splits = tl.minimum(tl.cdiv(end, KEYS), SPLITS)
    if split >= live_splits:
        return
    v_NH = tl.where((key_N < end)[:, None], v_NH, 0.0)
    most_R, sum_R, out_RH = nothing(ROWS, HEAD)
    most_R, sum_R, out_RH = attend(q_RH, k_NH, v_NH, key_N, position_R, end, most_R, sum_R, out_RH, scale_log2)
    for first_key in tl.range((split + SPLITS) * KEYS, end, SPLITS * KEYS, num_stages=STAGES):
        key_N = first_key + key
        is_key_N = key_N < end
        block_N = tl.load(table + key_N // PAGE, mask=is_key_N, other=0)
        place_NH = places(block_N, key_N, kv_head, KV_HEADS, HEAD, PAGE)
        k_NH = tl.load(keys + place_NH, mask=is_key_N[:, None], other=0.0)
        v_NH = tl.load(values + place_NH, mask=is_key_N[:, None], other=0.0)
        most_R, sum_R, out_RH = attend(q_RH, k_NH, v_NH, key_N, position_R, end, most_R, sum_R, out_RH, scale_log2)
    if live_splits > 1:
        place = (tile * KV_HEADS + kv_head) * SPLITS
        place_RH = row[:, None] * HEAD + dim[None, :]
        leave(partial, sums, place + split, is_row_R, row, place_RH, most_R, sum_R, out_RH, ROWS, HEAD)
        arrived = tl.atomic_add(arrivals + tile * KV_HEADS + kv_head, 1, sem="acq_rel")
        if arrived < live_splits - 1:
            return
        sum_R, out_RH = add_up(partial, sums, place, live_splits, is_row_R, row, place_RH, ROWS, HEAD, SPLITS)
        tl.store(arrivals + tile * KV_HEADS + kv_head, 0)  # ready for the next launch
    out_RH = (out_RH / sum_R[:, None]).to(q_RH.dtype).to(tl.float32)  # the precision that the learner's kernel gives
    store_halves(out, q_offset_RH, low, out_RH, is_row_R[:, None], TWICE)


class Scratch(NamedTuple):
    """Where splits leave their share; one launch after another may use the same."""

    partial: Tensor
    sums: Tensor
    arrivals: Tensor  # zero between launches

    @classmethod
    def make(cls, tiles: int, kv_heads: int, splits: int, rows: int, head_dim: int, device: torch.device) -> "Scratch":
        count = tiles * kv_heads * splits
        return cls(
            torch.empty(count * rows * head_dim, device=device),
            torch.empty(count * 2 * rows, device=device),
            torch.zeros(tiles * kv_heads, dtype=torch.int32, device=device),
        )


class Tiles(NamedTuple):
    """How packed tokens are cut into query tiles, and each tile's keys into splits."""

    rows: int
    splits: int
    tile_sequences: Tensor
    tile_tokens: Tensor
    query_starts: Tensor
    contexts: Tensor
    tables: Tensor

    @classmethod
    def of(cls, spans: list[Span], group: int, kv_heads: int, device: torch.device) -> "Tiles":
        """Few kinds, each of which is a kernel to compile: a mix of tokens has any number of rows, splits, blocks."""
        only_decodes = all(span.size == 1 for span in spans)
        rows = rows_for(1 if only_decodes else MOST_ROWS, group)
        step = rows // group
        tiles = [(number, first) for number, span in enumerate(spans) for first in range(0, span.size, step)]
        most_blocks = max(len(span.blocks) for span in spans)
        tables = np.zeros((len(spans), -(-most_blocks // 16) * 16), dtype=np.int32)
        for number, span in enumerate(spans):
            tables[number, : len(span.blocks)] = span.blocks
        starts = [0]
        for span in spans:
            starts.append(starts[-1] + span.size)
        splits = splits_for(len(tiles) * kv_heads, max(span.context for span in spans), device)
        on_device = lambda values: torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)
        return cls(
            rows,
            1 if splits == 1 else MOST_SPLITS,
            on_device([sequence for sequence, _ in tiles]),
            on_device([first for _, first in tiles]),
            on_device(starts),
            on_device([span.context for span in spans]),
            torch.from_numpy(tables).to(device, non_blocking=True),
        )


class TritonPaged:
    """The seam of attention/base.py over packed spans, in any order. `kv` is [layers, 2, blocks, BLOCK, K, D]."""

    def __init__(self, kv: Tensor, slots_T: Tensor, spans: list[Span], heads_per_kv: int):
        kv_heads, head_dim = kv.shape[-2:]
        self.kv = kv
        self.slots_T = slots_T
        self.heads_per_kv = heads_per_kv
        self.tiles = Tiles.of(spans, heads_per_kv, kv_heads, kv.device)
        count = len(self.tiles.tile_sequences)
        self.scratch = Scratch.make(count, kv_heads, self.tiles.splits, self.tiles.rows, head_dim, kv.device)

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys, values = self.kv[layer]
        size = keys.shape[-2:]
        keys.view(-1, *size).index_copy_(0, self.slots_T, k_TKD)
        values.view(-1, *size).index_copy_(0, self.slots_T, v_TKD)
        out = torch.empty(len(q_THD), q_THD.shape[1] * q_THD.shape[2], dtype=q_THD.dtype, device=q_THD.device)
        tiles, (kv_heads, head_dim) = self.tiles, size
        paged_kernel[len(tiles.tile_sequences), kv_heads, tiles.splits](
            q_THD.contiguous(), keys, values, out, tiles.tables, tiles.contexts, tiles.query_starts,
            tiles.tile_sequences, tiles.tile_tokens, *self.scratch, tiles.tables.stride(0), scale_log2(head_dim), 0,
            GROUP=self.heads_per_kv, KV_HEADS=kv_heads, HEAD=head_dim, PAGE=BLOCK, ROWS=tiles.rows, KEYS=KEYS,
            SPLITS=tiles.splits, WIDTH=0, STAGES=2, EARLY=False, TWICE=False, CHAINED=False, num_warps=4,
        )  # fmt: skip
        return out


def decode_attention(
    q_BD: Tensor, keys: Tensor, values: Tensor, out_BD: Tensor, tables: Tensor, positions_B: Tensor, scratch: Scratch,
    splits: int, chained: bool, keys_at_once: int = KEYS, warps: int = 4, width: int = 1, early: bool = False,
) -> None:  # fmt: skip
    """`width` tokens of each sequence, keys and values written already; nothing here looks at the host. `early`: what
    no kernel that may still run will write, which is all but the token's own key and value, is not waited for. With
    twice the rows, `out_BD` gets halves, the low ones after the high ones."""
    kv_heads, head_dim = keys.shape[-2:]
    group, tiles = q_BD.shape[1] // (kv_heads * head_dim), len(q_BD) // width
    rows = rows_for(width, group)
    assert rows // group >= width, "a tile holds all tokens of a sequence"
    assert width == 1 or not early, "only one key is new"
    paged_kernel[tiles, kv_heads, splits](
        q_BD, keys, values, out_BD, tables, positions_B, positions_B, positions_B, positions_B, *scratch,
        tables.stride(0), scale_log2(head_dim), q_BD.numel(),
        GROUP=group, KV_HEADS=kv_heads, HEAD=head_dim, PAGE=BLOCK, ROWS=rows, KEYS=keys_at_once,
        SPLITS=splits, WIDTH=width, STAGES=2, EARLY=early, TWICE=len(out_BD) > len(q_BD), CHAINED=chained,
        num_warps=warps,
        **({"launch_pdl": True} if chained else {}),
    )  # fmt: skip


def rows_for(tokens: int, group: int) -> int:
    """Rows of a tile: one token's heads at least, no more than its tokens fill."""
    rows = 16
    while rows < group or (rows < MOST_ROWS and rows < tokens * group):
        rows *= 2
    return rows


def splits_for(tiles: int, context: int, device: torch.device) -> int:
    """Enough programs to fill the device several times, none without a block of keys: where contexts differ, the
    longest would else go on alone."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted = -(-FILLS * processors // tiles)
    wanted = max(1, min(wanted, MOST_SPLITS, -(-context // KEYS)))
    return 1 << (wanted - 1).bit_length()


def scale_log2(head_dim: int) -> float:
    return head_dim**-0.5 * LOG2_E
