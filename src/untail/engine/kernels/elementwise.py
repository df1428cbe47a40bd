"""What lies between a library's matrix products when there are many tokens: one kernel for each gap.

Invariant: each takes rows of packed tokens and knows nothing of batches; keys and values go to their slots here.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from untail.engine.kernels.chain import start, wait


@triton.jit
def store_halves(out, place, low, value, mask, TWICE: tl.constexpr):
    """The value rounded; with TWICE also what that left, `low` further on."""
    high = value.to(out.dtype.element_ty)
    tl.store(out + place, high, mask=mask)
    if TWICE:
        tl.store(out + low + place, value - high.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    hidden, delta, gain, out, eps, rows,
    K: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, TWICE: tl.constexpr,
):  # fmt: skip
    """hidden += delta if asked to, which is the sum of ADD halves; out = rms-normed hidden, in halves with TWICE."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside, low = k < K, rows.to(tl.int64) * K
    x = tl.load(hidden + row * K + k, mask=inside, other=0.0).to(tl.float32)
    if ADD > 0:
        for half in tl.static_range(ADD):
            x += tl.load(delta + half * low + row * K + k, mask=inside, other=0.0)
        tl.store(hidden + row * K + k, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
    normed = x * scale * tl.load(gain + k, mask=inside, other=0.0).to(tl.float32)
    store_halves(out, row * K + k, low, normed, inside, TWICE)


@triton.jit
def halves_kernel(x, out, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < size, other=0.0).to(tl.float32)
    store_halves(out, place, size, value, place < size, TWICE=True)


def halves(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x rounded, and what that left."""
    out = torch.empty(2, *x.shape, device=x.device, dtype=dtype)
    halves_kernel[triton.cdiv(x.numel(), 1024),](x.contiguous(), out, x.numel(), BLOCK=1024, num_warps=4)
    return out[0], out[1]


def launch_norm(hidden: Tensor, gain: Tensor, out: Tensor, eps: float, delta: Tensor | None = None) -> None:
    """`out` and `delta` may have twice the rows: halves of a sum, the low ones after the high ones."""
    rows, size = hidden.shape
    norm_kernel[rows,](
        hidden, hidden if delta is None else delta, gain, out, eps, rows,
        K=size, BLOCK=triton.next_power_of_2(size), ADD=0 if delta is None else len(delta) // rows,
        TWICE=len(out) > rows, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def rope_kv_kernel(
    qkv, bias, q_gain, k_gain, rope_table, positions, tables, live, q, keys, values, eps, table_stride, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    TWICE: tl.constexpr, BIAS: tl.constexpr, QK_NORM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Bias, norms of query and key heads where the family has them, rotary positions, KV write; a program a head. WIDTH
    tokens have one block table. With TWICE, qkv is the sum of a row and the one `rows` further on."""
    HALF: tl.constexpr = HEAD // 2
    row, head, dim = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, HALF)
    start(CHAINED)
    wait(CHAINED)
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * HEAD + dim
    a, b = tl.load(source).to(tl.float32), tl.load(source + HALF).to(tl.float32)
    if TWICE:
        low = source + rows.to(tl.int64) * (HEADS + 2 * KV_HEADS) * HEAD
        a += tl.load(low).to(tl.float32)
        b += tl.load(low + HALF).to(tl.float32)
    if BIAS:
        a += tl.load(bias + head * HEAD + dim).to(tl.float32)
        b += tl.load(bias + head * HEAD + HALF + dim).to(tl.float32)
    position = tl.load(positions + row)
    if head < HEADS + KV_HEADS:
        if QK_NORM:
            gain = q_gain if head < HEADS else k_gain
            scale = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / HEAD + eps)
            a *= scale * tl.load(gain + dim).to(tl.float32)
            b *= scale * tl.load(gain + HALF + dim).to(tl.float32)
        cos = tl.load(rope_table + position * HEAD + dim).to(tl.float32)
        sin = tl.load(rope_table + position * HEAD + HALF + dim).to(tl.float32)
        a, b = a * cos - b * sin, b * cos + a * sin
    if head < HEADS:
        out = q + (row * HEADS + head) * HEAD + dim
        tl.store(out, a)
        tl.store(out + HALF, b)
    elif tl.load(live + row) != 0:
        block = tl.load(tables + (row // WIDTH) * table_stride + position // PAGE).to(tl.int64)
        is_value = head >= HEADS + KV_HEADS
        pool = values if is_value else keys
        kv_head = head - HEADS - KV_HEADS if is_value else head - HEADS
        out = pool + ((block * PAGE + position % PAGE) * KV_HEADS + kv_head) * HEAD + dim
        tl.store(out, a)
        tl.store(out + HALF, b)


@triton.jit
def silu_kernel(
    gate_up, out, kept, N: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up; with KEEP both also go to `kept`, for a backward pass."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start(CHAINED)
    wait(CHAINED)
    gate = tl.load(gate_up + row * 2 * N + n, mask=n < N, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * N + N + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + row * N + n, gate * tl.sigmoid(gate) * up, mask=n < N)
    if KEEP:
        tl.store(kept + row * 2 * N + n, gate, mask=n < N)
        tl.store(kept + row * 2 * N + N + n, up, mask=n < N)


@triton.jit
def keep_kernel(
    hidden, gain, positions, tables, live, pool, eps, table_stride,
    K: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The rms-normed hidden state of every live token to its slot in the pool: what the output head sees of it."""
    row, k = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = k < K
    start(CHAINED)
    wait(CHAINED)
    position = tl.load(positions + row)
    if tl.load(live + row) != 0:
        x = tl.load(hidden + row * K + k, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        block = tl.load(tables + (row // WIDTH) * table_stride + position // PAGE).to(tl.int64)
        out = pool + (block * PAGE + position % PAGE) * K + k
        tl.store(out, x * scale * tl.load(gain + k, mask=inside, other=0.0).to(tl.float32), mask=inside)
