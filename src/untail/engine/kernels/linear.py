"""A layer's matrix products for one token or a few, each with everything around it in the same kernel.

Invariant: weights are read once, as they lie ([out, in], rows contiguous), and nothing between two products goes
through memory but what the next product needs: norm + QKV + bias + rotary + KV write, output + residual, norm +
gate-up + SiLU, down + residual. At a handful of tokens a product is a read of its weights, and what costs is the
number of kernels and of loads that wait for one another.

The norm's gain goes into the product and its 1 / rms is multiplied in afterwards, so that the norm needs no pass of its
own. Each token has sums of its own: from four on, a library on tensor cores is faster.

Suffixes: M tokens, P weight rows of one program, K the inner size. Pre: M is a power of two and all M tokens exist.
"""

import triton
import triton.language as tl

from untail.engine.kernels.chain import start, wait


@triton.jit
def block(pointers, begin, k, K: tl.constexpr, BLOCK_K: tl.constexpr, ONCE: tl.constexpr = False):
    """The block of K that begins there; masked only where BLOCK_K does not divide K. ONCE, for weights: nobody reads it
    again in this step, and what others do read shall stay in the cache."""
    HINT: tl.constexpr = "evict_first" if ONCE else ""
    if K % BLOCK_K == 0:
        return tl.load(pointers + begin, eviction_policy=HINT)
    else:
        there = tl.broadcast_to(begin + k < K, pointers.shape)
        return tl.load(pointers + begin, mask=there, other=0.0, eviction_policy=HINT)


@triton.jit
def blocks(pointers, k, K: tl.constexpr, BLOCK_K: tl.constexpr, COUNT: tl.constexpr, ONCE: tl.constexpr = False):
    """The first COUNT blocks."""
    out = ()
    for i in tl.static_range(COUNT):
        out = out + (block(pointers, i * BLOCK_K, k, K, BLOCK_K, ONCE),)
    return out


@triton.jit
def product(
    x, ids, gain, gains, w_PK, weights, eps, k,
    K: tl.constexpr, M: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr, GAINS: tl.constexpr,
    GATHER: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """[M, P] in float32: M rows of x, normed if asked to, times the rows of the weight that `w_PK` points to.

    `weights` are its first EARLY blocks, which the caller sent for before it waited for x; as many stay under way.
    `gains` are the first GAINS blocks of the norm's gain, sent for as early. With GATHER, x is the embedding and ids
    say which of its rows.
    """
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    sums, squares = (), ()
    for m in tl.static_range(M):
        sums = sums + (tl.zeros((w_PK.shape[0], BLOCK_K), tl.float32),)
        squares = squares + (tl.zeros((BLOCK_K,), tl.float32),)
    for i in tl.static_range(BLOCKS):
        if i + EARLY < BLOCKS:
            weights = weights + (block(w_PK, (i + EARLY) * BLOCK_K, k[None, :], K, BLOCK_K, ONCE=True),)
        w32_PK = weights[i].to(tl.float32)
        new_sums, new_squares = (), ()
        for m in tl.static_range(M):
            x_row = x + (tl.load(ids + m) if GATHER else m) * K + k
            x_K = block(x_row, i * BLOCK_K, k, K, BLOCK_K).to(tl.float32)
            if NORM:
                new_squares = new_squares + (squares[m] + x_K * x_K,)
                if i < GAINS:
                    x_K *= gains[i].to(tl.float32)
                else:
                    x_K *= block(gain + k, i * BLOCK_K, k, K, BLOCK_K).to(tl.float32)
            new_sums = new_sums + (sums[m] + w32_PK * x_K[None, :],)
        sums, squares = new_sums, new_squares
    out_MP = tl.zeros((M, w_PK.shape[0]), tl.float32)
    for m in tl.static_range(M):
        out_P = tl.sum(sums[m], 1)
        if NORM:
            out_P *= tl.rsqrt(tl.sum(squares[m], 0) / K + eps)
        out_MP = tl.where((tl.arange(0, M) == m)[:, None], out_P[None, :], out_MP)
    return out_MP


@triton.jit
def qkv_kernel(
    x, ids, gain, weight, bias, rope_table, positions, tables, live, q, keys, values, eps, table_stride,
    K: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, PAGE: tl.constexpr,
    M: tl.constexpr, P: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr, GATHER: tl.constexpr,
    BIAS: tl.constexpr, GAINS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Norm, QKV, rotary positions; queries to `q`, keys and values of live tokens to their slots.

    A program makes P dimensions of the first half of a head and the P of the second half that they turn with. All that
    the end needs is loaded before the product: a load after it would cost its whole latency.
    """
    HALF: tl.constexpr = HEAD // 2
    PIECES: tl.constexpr = HALF // P
    head = tl.program_id(0) // PIECES
    dim_P = (tl.program_id(0) % PIECES) * P + tl.arange(0, P)
    first_P, second_P = head * HEAD + dim_P, head * HEAD + HALF + dim_P
    start(CHAINED)
    k = tl.arange(0, BLOCK_K)
    w_PK = weight + tl.reshape(tl.join(first_P, second_P), (2 * P,))[:, None].to(tl.int64) * K + k[None, :]
    weights = blocks(w_PK, k[None, :], K, BLOCK_K, EARLY, ONCE=True)
    gains = blocks(gain + k, k, K, BLOCK_K, GAINS)
    if BIAS:
        bias_a_P, bias_b_P = tl.load(bias + first_P).to(tl.float32), tl.load(bias + second_P).to(tl.float32)
    wait(CHAINED)
    row_M = tl.arange(0, M)
    position_M, is_live_M = tl.load(positions + row_M), tl.load(live + row_M) != 0
    block_M = tl.load(tables + row_M * table_stride + position_M // PAGE).to(tl.int64)
    turn = rope_table + position_M[:, None] * HEAD + dim_P[None, :]
    cos, sin = tl.load(turn).to(tl.float32), tl.load(turn + HALF).to(tl.float32)
    both_MP = product(x, ids, gain, gains, w_PK, weights, eps, k, K, M, BLOCK_K, EARLY, GAINS, GATHER, True)
    a, b = tl.split(tl.reshape(both_MP, (M, P, 2)))
    if BIAS:
        a += bias_a_P[None, :]
        b += bias_b_P[None, :]
    if head < HEADS + KV_HEADS:
        a, b = a * cos - b * sin, b * cos + a * sin
    if head < HEADS:
        out = q + row_M[:, None] * (HEADS * HEAD) + first_P[None, :]
        tl.store(out, a)
        tl.store(out + HALF, b)
    else:
        is_value = head >= HEADS + KV_HEADS
        pool = values if is_value else keys
        kv_head = head - HEADS - KV_HEADS if is_value else head - HEADS
        slot_M = block_M * PAGE + position_M % PAGE
        out = pool + slot_M[:, None] * (KV_HEADS * HEAD) + kv_head * HEAD + dim_P[None, :]
        tl.store(out, a, mask=is_live_M[:, None])
        tl.store(out + HALF, b, mask=is_live_M[:, None])


@triton.jit
def gate_up_kernel(
    x, gain, weight, out, eps,
    K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, P: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
    GAINS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of the normed x; gate is the weight's first N rows, up the last N."""
    gate_P = tl.program_id(0) * P + tl.arange(0, P)
    start(CHAINED)
    k = tl.arange(0, BLOCK_K)
    w_PK = weight + tl.reshape(tl.join(gate_P, gate_P + N), (2 * P,))[:, None].to(tl.int64) * K + k[None, :]
    weights = blocks(w_PK, k[None, :], K, BLOCK_K, EARLY, ONCE=True)
    gains = blocks(gain + k, k, K, BLOCK_K, GAINS)
    wait(CHAINED)
    both_MP = product(x, x, gain, gains, w_PK, weights, eps, k, K, M, BLOCK_K, EARLY, GAINS, False, True)
    gate, up = tl.split(tl.reshape(both_MP, (M, P, 2)))
    row_M = tl.arange(0, M)
    value_MP = gate * tl.sigmoid(gate) * up
    tl.store(out + row_M[:, None] * N + gate_P[None, :], value_MP)


@triton.jit
def residual_kernel(
    x, weight, residual, ids, out, rounded,
    K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, P: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
    GATHER: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """residual + x W^T, also to `rounded`, which the next product reads: every program reads all of it, and half the
    bytes. `out` may be the residual itself, for a program reads no column that another writes."""
    column_P = tl.program_id(0) * P + tl.arange(0, P)
    start(CHAINED)
    k = tl.arange(0, BLOCK_K)
    w_PK = weight + column_P[:, None].to(tl.int64) * K + k[None, :]
    weights = blocks(w_PK, k[None, :], K, BLOCK_K, EARLY, ONCE=True)
    wait(CHAINED)
    row_M = tl.arange(0, M)
    old_M = tl.load(ids + row_M) if GATHER else row_M.to(tl.int64)
    old_MP = tl.load(residual + old_M[:, None] * N + column_P[None, :]).to(tl.float32)
    value_MP = old_MP + product(x, x, x, (), w_PK, weights, 0.0, k, K, M, BLOCK_K, EARLY, 0, False, False)
    tl.store(out + row_M[:, None] * N + column_P[None, :], value_MP)
    tl.store(rounded + row_M[:, None] * N + column_P[None, :], value_MP)
