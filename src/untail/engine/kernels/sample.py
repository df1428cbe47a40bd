"""From logits to the next token on the device: the sampler of sampler.py without the host.

Invariant: the same random stream, the same order of the vocabulary and the same figures as sampler.py; a token depends
on its own row alone. Logits are summed up in runs of RUN tokens by whoever makes or reads them (`run_figures`); one
small program a row (`draw_kernel`) then adds up the runs, inverts the cumulative distribution among them and within
one, and moves the row's state one token on. A row that stops is not moved any further; it is computed with, and its
output is -1.

Truncated sampling (top-p, top-k, min-p) needs a sort and stays with sampler.py.
"""

import triton
import triton.language as tl

from untail.engine.kernels.chain import start, wait
from untail.engine.kernels.linear import blocks, product

RUN = 128


@triton.jit
def run_figures(logits_MR, policy_T_M, behaviour_T_M):
    """Of each row's run: the largest logit; sum of e^((x - largest) / T) at the policy's temperature, the same weighted
    with (x - largest) / T, and the plain sum at the behaviour's. Greedy rows (behaviour temperature 0) sum to 1."""
    most_M = tl.max(logits_MR, 1)
    base_M = tl.where(most_M == float("-inf"), 0.0, most_M)
    z_MR = (logits_MR - base_M[:, None]) / policy_T_M[:, None]
    e_MR = tl.exp(z_MR)
    weighted_M = tl.sum(tl.where(logits_MR == float("-inf"), 0.0, e_MR * z_MR), 1)
    is_greedy_M = behaviour_T_M == 0.0
    b_MR = tl.exp((logits_MR - base_M[:, None]) / tl.where(is_greedy_M, 1.0, behaviour_T_M)[:, None])
    return most_M, tl.sum(e_MR, 1), weighted_M, tl.sum(b_MR, 1)


@triton.jit
def head_kernel(
    x, gain, weight, policy_T, behaviour_T, logits, runs, eps, run_stride,
    K: tl.constexpr, V: tl.constexpr, M: tl.constexpr, RUN: tl.constexpr, BLOCK_K: tl.constexpr, EARLY: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Final norm and head for few tokens; logits [M, V] and the figures of a run for each program."""
    run = tl.program_id(0)
    column_R = run * RUN + tl.arange(0, RUN)
    start(CHAINED)
    k = tl.arange(0, BLOCK_K)
    w_RK = weight + tl.minimum(column_R, V - 1)[:, None].to(tl.int64) * K + k[None, :]
    weights = blocks(w_RK, k[None, :], K, BLOCK_K, EARLY, ONCE=True)
    wait(CHAINED)
    logits_MR = product(x, x, gain, (), w_RK, weights, eps, k, K, M, BLOCK_K, EARLY, 0, False, True)
    logits_MR = tl.where(column_R[None, :] < V, logits_MR, float("-inf"))
    row_M = tl.arange(0, M)
    is_there_R = (column_R < V)[None, :]
    tl.store(logits + row_M[:, None].to(tl.int64) * V + column_R[None, :], logits_MR, mask=is_there_R)
    most_M, sum_M, weighted_M, behaviour_M = run_figures(
        logits_MR, tl.load(policy_T + row_M), tl.load(behaviour_T + row_M)
    )
    place_M = runs + row_M * 4 * run_stride + run
    tl.store(place_M, most_M)
    tl.store(place_M + run_stride, sum_M)
    tl.store(place_M + 2 * run_stride, weighted_M)
    tl.store(place_M + 3 * run_stride, behaviour_M)


@triton.jit
def runs_kernel(
    logits, policy_T, behaviour_T, runs, run_stride,
    V: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The figures of RUNS runs of one row, from logits that a library multiplied."""
    row, run_N = tl.program_id(0), tl.program_id(1) * RUNS + tl.arange(0, RUNS)
    start(CHAINED)
    wait(CHAINED)
    column = run_N[:, None] * RUN + tl.arange(0, RUN)[None, :]
    logits_NR = tl.load(logits + row.to(tl.int64) * V + column, mask=column < V, other=float("-inf")).to(tl.float32)
    ones = tl.full((RUNS,), 1.0, tl.float32)
    most_N, sum_N, weighted_N, behaviour_N = run_figures(
        logits_NR, ones * tl.load(policy_T + row), ones * tl.load(behaviour_T + row)
    )
    place_N, is_run_N = runs + row * 4 * run_stride + run_N, run_N < run_stride
    tl.store(place_N, most_N, mask=is_run_N)
    tl.store(place_N + run_stride, sum_N, mask=is_run_N)
    tl.store(place_N + 2 * run_stride, weighted_N, mask=is_run_N)
    tl.store(place_N + 3 * run_stride, behaviour_N, mask=is_run_N)


@triton.jit
def shifted(x, BITS: tl.constexpr):
    """The logical shift of a signed 64-bit number."""
    return (x.to(tl.uint64) >> BITS).to(tl.int64)


@triton.jit
def uniform(stream, position):
    """splitmix64 of (stream, position) as a float64 in [0, 1): sampler.uniform."""
    x = stream + position * -0x61C8864680B583EB
    x = (x ^ shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ shifted(x, 27)) * -0x6B2FB644ECCEEE15
    x = x ^ shifted(x, 31)
    return shifted(x, 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def first_above(masses, places, target, last):
    """The first place whose cumulative mass is above the target, and the mass before it. Pre: masses in float64."""
    cumulative = tl.cumsum(masses, 0)
    target = tl.minimum(target, tl.sum(masses, 0) * (1 - 1e-12))
    found = tl.minimum(tl.sum((cumulative <= target).to(tl.int32), 0), last)
    return found, tl.sum(tl.where(places < found, masses, 0.0), 0)


@triton.jit
def draw_kernel(
    logits, runs, policy_T, behaviour_T, streams, stops, ids, positions, left, live, tokens_out, figures_out, clock,
    run_stride, slots,
    V: tl.constexpr, RUN: tl.constexpr, RUNS: tl.constexpr, STOPS: tl.constexpr, STEPS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Draw a row's token, write it with its figures to [clock % STEPS, row], and move the row on."""
    row = tl.program_id(0)
    start(CHAINED)
    wait(CHAINED)
    run_N = tl.arange(0, RUNS)
    is_run_N = run_N < run_stride
    place_N = runs + row * 4 * run_stride + run_N
    most_N = tl.load(place_N, mask=is_run_N, other=float("-inf"))
    sum_N = tl.load(place_N + run_stride, mask=is_run_N, other=0.0)
    weighted_N = tl.load(place_N + 2 * run_stride, mask=is_run_N, other=0.0)
    behaviour_N = tl.load(place_N + 3 * run_stride, mask=is_run_N, other=0.0)
    policy, behaviour = tl.load(policy_T + row), tl.load(behaviour_T + row)
    most = tl.max(most_N, 0)
    below_N = tl.where(is_run_N, (most_N - most) / policy, 0.0)
    scale_N = tl.where(is_run_N, tl.exp(below_N), 0.0)
    normaliser = tl.sum(sum_N * scale_N, 0)
    log_normaliser = tl.log(normaliser)
    entropy = log_normaliser - tl.sum(scale_N * (weighted_N + below_N * sum_N), 0) / normaliser

    is_greedy = behaviour == 0.0
    safe_T = tl.where(is_greedy, 1.0, behaviour)
    masses_N = (behaviour_N * tl.where(is_run_N, tl.exp((most_N - most) / safe_T), 0.0)).to(tl.float64)
    position = tl.load(positions + row) + 1  # of the token to draw
    total = tl.sum(masses_N, 0)
    target = uniform(tl.load(streams + row), position) * total
    run, before = first_above(masses_N, run_N, target, run_stride - 1)
    run = tl.where(is_greedy, tl.min(tl.where(most_N == most, run_N, RUNS - 1), 0), run)
    place_R = tl.arange(0, RUN)
    column_R = run * RUN + place_R
    row_logits = logits + row.to(tl.int64) * V
    logits_R = tl.load(row_logits + column_R, mask=column_R < V, other=float("-inf")).to(tl.float32)
    within_R = tl.exp((logits_R - most) / safe_T).to(tl.float64)
    place, _ = first_above(within_R, place_R, target - before, RUN - 1)
    place = tl.where(is_greedy, tl.min(tl.where(logits_R == most, place_R, RUN - 1), 0), place)
    token = tl.minimum(run * RUN + place, V - 1)

    logit = tl.sum(tl.where(place_R == place, logits_R, 0.0), 0)
    policy_logprob = (logit - most) / policy - log_normaliser
    behaviour_logprob = (logit - most) / safe_T - tl.log(total).to(tl.float32)
    stop_S = tl.load(stops + row * STOPS + tl.arange(0, STOPS))
    stop_logits_S = tl.load(row_logits + stop_S, mask=stop_S >= 0, other=float("-inf")).to(tl.float32)
    p_stop = tl.sum(tl.exp((stop_logits_S - most) / policy), 0) / normaliser

    alive, budget = tl.load(live + row), tl.load(left + row)
    step = tl.load(clock + row)
    out = (step % STEPS) * slots + row
    tl.store(tokens_out + out, tl.where(alive != 0, token, -1))
    tl.store(figures_out + out * 4, policy_logprob)
    tl.store(figures_out + out * 4 + 1, tl.where(is_greedy, 0.0, behaviour_logprob))
    tl.store(figures_out + out * 4 + 2, entropy)
    tl.store(figures_out + out * 4 + 3, p_stop)
    tl.store(clock + row, step + 1)
    stops_now = tl.max((stop_S == token).to(tl.int32), 0) != 0
    goes_on = (alive != 0) & (budget > 1) & (stops_now == 0)
    tl.store(left + row, budget - alive)
    tl.store(live + row, goes_on.to(tl.int32))
    if goes_on:
        tl.store(ids + row, token.to(tl.int64))
        tl.store(positions + row, position)
