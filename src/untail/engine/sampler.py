"""From logits to tokens, with everything RL wants to know about each, in one pass and one copy to the host.

Invariant: a token depends on its logits, its parameters and its random stream at its position, and on nothing else: not
on the batch it was sampled in. `policy_logprob`, `entropy` and `p_eos` are the policy's (the training temperature,
nothing truncated); `behaviour_logprob` is what the token was really drawn from.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.engine.sequence import Figures, Sequence

RUN = 256  # tokens of the vocabulary that are summed up first

_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9 as a signed 64-bit number
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15

NOT_FINITE = (
    "the model's logits are not finite: its weights have blown up or were damaged, or its queries, keys or values go "
    "beyond 65504, where engine.dtype = 'float32' is what is left"
)


class Sampled(NamedTuple):
    """Host lists, one entry per row."""

    tokens: list[int]
    figures: list[Figures]
    counts: list[bool]  # no draft before it was wrong


def sample(logits_RV: Tensor, drawing: list[Sequence], drafts: list[list[int]]) -> Sampled:
    """Draw the next token of each sequence, and the one after each of its drafts as if that had been accepted."""
    logits_RV = logits_RV.float()
    device = logits_RV.device
    sequences = [sequence for sequence, its in zip(drawing, drafts, strict=True) for _ in range(len(its) + 1)]
    offsets = [offset for its in drafts for offset in range(len(its) + 1)]
    policy_RV = log_softmax_at(logits_RV, [s.spec.sampling.policy_temperature for s in sequences])
    probs_RV = policy_RV.exp()
    entropy_R = -(probs_RV * policy_RV).sum(-1)
    behaviour_RV = behaviour_log_probs(logits_RV, policy_RV, sequences)
    drawn_from = probs_RV if behaviour_RV is policy_RV else behaviour_RV.exp()
    streams = torch.tensor([s.spec.stream for s in sequences], device=device)
    positions = torch.tensor([len(s.tokens) + offset for s, offset in zip(sequences, offsets, strict=True)]).to(device)
    tokens_R = draw(drawn_from, uniform(streams, positions))
    columns = torch.stack(
        (
            tokens_R.double(),
            policy_RV.gather(-1, tokens_R[:, None])[:, 0].double(),
            behaviour_RV.gather(-1, tokens_R[:, None])[:, 0].double(),
            entropy_R.double(),
            stop_probability(probs_RV, sequences).double(),
            follows_accepted(tokens_R, drafts, offsets).double(),
        )
    ).tolist()
    if not all(map(math.isfinite, columns[3])):
        raise FloatingPointError(NOT_FINITE)
    tokens, *figures, counts = columns
    return Sampled([int(token) for token in tokens], list(zip(*figures, strict=True)), [count == 1 for count in counts])


def follows_accepted(tokens_R: Tensor, drafts: list[list[int]], offsets: list[int]) -> Tensor:
    """Which rows come after nothing but accepted drafts: up to and with the first token that differs from its draft."""
    if not any(drafts):
        return torch.ones_like(tokens_R)
    drafts_R = torch.tensor([token for its in drafts for token in (*its, -1)]).to(tokens_R.device)
    rejected_R = (tokens_R != drafts_R).long()
    before_R = rejected_R.cumsum(0) - rejected_R
    first_R = torch.arange(len(offsets), device=tokens_R.device) - torch.tensor(offsets).to(tokens_R.device)
    return before_R == before_R[first_R]


def uniform(streams_R: Tensor, positions_R: Tensor) -> Tensor:
    """A float64 in [0, 1) for each (stream, position): splitmix64, in torch's wrapping int64 arithmetic."""
    x = streams_R + positions_R * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def draw(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Invert the cumulative distribution, in vocabulary order; float64, so that no tail of the vocabulary is lost.

    In two levels, first among runs of the vocabulary and then within one: a float64 sum over the whole of a large
    vocabulary would cost more than everything else in the sampler.
    """
    rows, vocab = probs_RV.shape
    probs_RV = F.pad(probs_RV, (0, -vocab % RUN)) if vocab % RUN else probs_RV
    runs = probs_RV.view(rows, -1, RUN)
    sums = runs.sum(-1, dtype=torch.float64)
    cumulative = sums.cumsum(-1)
    target = uniform_R[:, None] * cumulative[:, -1:]
    run = _first_above(cumulative, target)
    target = target - cumulative.gather(1, run) + sums.gather(1, run)
    within = runs[torch.arange(rows, device=run.device), run[:, 0]].cumsum(-1, dtype=torch.float64)
    return (run * RUN + _first_above(within, target))[:, 0]


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first step above the target, below the last one whatever the rounding: a token without probability never."""
    found = torch.searchsorted(cumulative, torch.minimum(target, cumulative[:, -1:] * (1 - 1e-12)), right=True)
    return found.clamp_max(cumulative.shape[-1] - 1)  # nothing is above it where the logits are not finite


def behaviour_log_probs(logits_RV: Tensor, policy_RV: Tensor, sequences: list[Sequence]) -> Tensor:
    """The policy's own tensor where every row samples from the policy; else a copy with the other rows replaced."""
    others = [row for row, sequence in enumerate(sequences) if not sequence.behaves_as_policy]
    if not others:
        return policy_RV
    behaviour_RV = policy_RV.clone()
    greedy = [row for row in others if sequences[row].spec.sampling.temperature == 0]
    tempered = [row for row in others if sequences[row].spec.sampling.temperature > 0]
    if greedy:
        behaviour_RV[greedy] = greedy_log_probs(logits_RV[greedy])
    if tempered:
        behaviour_RV[tempered] = truncated_log_probs(logits_RV[tempered], [sequences[row] for row in tempered])
    return behaviour_RV


def greedy_log_probs(logits_RV: Tensor) -> Tensor:
    """All the probability on the best token."""
    best = logits_RV.argmax(-1, keepdim=True)
    return torch.full_like(logits_RV, float("-inf")).scatter_(-1, best, 0.0)


def truncated_log_probs(logits_RV: Tensor, sequences: list[Sequence]) -> Tensor:
    """Temperature, then min-p, top-k and top-p on the tempered distribution, then renormalised."""
    sampling = [sequence.spec.sampling for sequence in sequences]
    column = lambda values: torch.tensor(values, device=logits_RV.device)[:, None]
    logp_RV = log_softmax_at(logits_RV, [s.temperature for s in sampling])
    sorted_RV, order = logp_RV.sort(dim=-1, descending=True, stable=True)
    probs = sorted_RV.exp()
    rank = torch.arange(logits_RV.shape[-1], device=logits_RV.device)
    keep = rank < column([min(s.top_k or len(rank), len(rank)) for s in sampling])
    keep &= sorted_RV >= sorted_RV[:, :1] + column([s.min_p for s in sampling]).log()
    # A token stays while those before it have less than top-p together: the one that crosses the line is kept.
    keep &= (probs.cumsum(-1) - probs < column([s.top_p for s in sampling])) | (rank == 0)
    kept = torch.zeros_like(keep).scatter_(-1, order, keep)
    return logp_RV.masked_fill(~kept, float("-inf")).log_softmax(-1)


def log_softmax_at(logits_RV: Tensor, temperatures: list[float]) -> Tensor:
    if any(temperature != 1.0 for temperature in temperatures):
        logits_RV = logits_RV / torch.tensor(temperatures, device=logits_RV.device)[:, None]
    return logits_RV.log_softmax(-1)


def stop_probability(probs_RV: Tensor, sequences: list[Sequence]) -> Tensor:
    """The sum over each row's stop ids."""
    stops = [sequence.spec.sampling.stop_ids for sequence in sequences]
    if all(ids == stops[0] for ids in stops):
        return probs_RV[:, list(stops[0])].sum(-1)
    rows = [row for row, ids in enumerate(stops) for _ in ids]
    columns = [token for ids in stops for token in ids]
    total = torch.zeros(len(stops), device=probs_RV.device)
    return total.index_add_(0, torch.tensor(rows, device=total.device), probs_RV[rows, columns])


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """The logical shift that torch's arithmetic one is not."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
