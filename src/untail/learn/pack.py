"""Samples packed into micro-batches: whole sequences end to end, no padding, and each prompt once.

Invariant: every token in the loss appears exactly once, predicted by the hidden state one position before it. Responses
to one prompt share that prompt's tokens within a micro-batch. A micro-batch computes at most `token_budget` tokens,
unless it is one sequence that is longer. Sequences end with the last position that predicts a token in the loss.
Positions that are constants to the gradient come after all others: the first `live` of the packed tokens are not.

Shape suffixes: T packed tokens, U tokens of the whole sequences (shared ones repeated), R rows in the loss.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from untail.learn import column
from untail.learn.sample import Sample


@dataclass(slots=True)
class LossColumns:
    """One entry per token in the loss. `engine_logprob` is the policy's, of the version that sampled the token, and
    `behaviour` that of what it was sampled from; `is_current` where that version is the present one. The trainer fills
    in the log-probs `prox` (the policy just before the update) and `reference` where it needs them."""

    target_R: Tensor
    engine_logprob_R: Tensor
    behaviour_R: Tensor
    is_current_R: Tensor
    advantage_R: Tensor
    weight_R: Tensor
    prox_R: Tensor | None = None
    reference_R: Tensor | None = None

    def rows(self, rows: slice) -> "LossColumns":
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        parts: dict[str, Any] = {name: None if value is None else value[rows] for name, value in values}
        return LossColumns(**parts)


@dataclass(slots=True)
class MicroBatch:
    """`lengths` are of whole sequences and sum to U. `predictor_R`: the packed token that predicts a row's target.
    `samples` are whose rows they are, in their order. `recompute`: activations are computed again in the backward pass,
    not kept."""

    samples: list[Sample]
    lengths: list[int]
    live: int
    ids_T: Tensor
    positions_T: Tensor
    unrolled_U: Tensor
    home_T: Tensor
    predictor_R: Tensor
    columns: LossColumns
    recompute: bool = False

    @property
    def tokens(self) -> int:
        """That are computed."""
        return len(self.ids_T)


@dataclass(slots=True)
class _Sequence:
    """One sample as the model sees it: prompt and response, cut after the last predictor."""

    sample: Sample
    prompt: tuple[int, ...]
    response: list[int]
    in_loss: np.ndarray

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def pack(
    samples: Iterable[Sample], token_budget: int, device: torch.device, dtype: torch.dtype, version: int = 0
) -> list[MicroBatch]:
    """Micro-batches of all samples that have a token in the loss; log-probs, advantages and weights are `dtype`.
    `version` is the present one of the weights."""
    sequences = [sequence for sample in samples if (sequence := _sequence(sample)) is not None]
    return [_micro_batch(part, device, dtype, version) for part in _cut(sequences, token_budget)]


def idle(device: torch.device, dtype: torch.dtype) -> MicroBatch:
    """A pass over one token with nothing in the loss: for a rank that has no more, while others have."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    none, nothing = zero[:0], torch.empty(0, dtype=dtype, device=device)
    columns = LossColumns(none, nothing, nothing, none.bool(), nothing, nothing)
    return MicroBatch([], [1], 1, zero, zero, zero, zero, none, columns)


def halves(micro: MicroBatch) -> list[MicroBatch]:
    """A micro-batch of several sequences as two, of about the same number of tokens, with its columns as they are."""
    ends = np.cumsum(micro.lengths)
    middle = min(int(np.searchsorted(ends, ends[-1] / 2)) + 1, len(ends) - 1)
    parts, row, columns = [], 0, micro.columns
    for samples in (micro.samples[:middle], micro.samples[middle:]):
        # Sorted by length already, so that they stay in their order, and their rows with them.
        sequences = [sequence for sample in samples if (sequence := _sequence(sample)) is not None]
        part = _micro_batch(sequences, micro.ids_T.device, columns.weight_R.dtype, version=0)
        rows = len(part.predictor_R)
        part = replace(part, columns=columns.rows(slice(row, row + rows)), recompute=micro.recompute)
        if micro.live == micro.tokens:  # whatever its samples say, it was to have no constants
            part.live = part.tokens
        parts.append(part)
        row += rows
    return parts


def _sequence(sample: Sample) -> _Sequence | None:
    in_loss = np.flatnonzero(sample.weight_N)
    if not len(in_loss):
        return None
    return _Sequence(sample, sample.trajectory.prompt.tokens, sample.trajectory.tokens[: in_loss[-1]], in_loss)


def _cut(sequences: list[_Sequence], token_budget: int) -> list[list[_Sequence]]:
    """In the order given, which has siblings side by side; a shared prompt counts once."""
    parts: list[list[_Sequence]] = []
    used, prompts = 0, set[tuple[int, ...]]()
    for sequence in sequences:
        needed = len(sequence.response) + (0 if sequence.prompt in prompts else len(sequence.prompt))
        if not parts or used + needed > token_budget:
            parts.append([])
            used, prompts, needed = 0, set(), sequence.length
        parts[-1].append(sequence)
        used += needed
        prompts.add(sequence.prompt)
    return parts


def _micro_batch(sequences: list[_Sequence], device: torch.device, dtype: torch.dtype, version: int) -> MicroBatch:
    # Neighbours of equal length share one call of the attention kernel.
    sequences = sorted(sequences, key=lambda sequence: sequence.length)
    ids, positions, unrolled = _lay_out(sequences)
    live, order, unrolled = _constants_last(sequences, unrolled)
    # np.unique returns the first whole-sequence token that is each packed token; all packed tokens occur.
    home = np.unique(np.concatenate(unrolled), return_index=True)[1]
    predictors = [index[len(s.prompt) - 1 + s.in_loss] for s, index in zip(sequences, unrolled, strict=True)]

    def whole(parts: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    def in_loss(column_of: Callable[[Sample], np.ndarray]) -> Tensor:
        return whole([column_of(s.sample)[s.in_loss] for s in sequences])

    return MicroBatch(
        samples=[sequence.sample for sequence in sequences],
        lengths=[sequence.length for sequence in sequences],
        live=live,
        ids_T=whole([np.concatenate(ids)[order]]),
        positions_T=whole([np.concatenate(positions)[order]]),
        unrolled_U=whole(unrolled),
        home_T=whole([home]),
        predictor_R=whole(predictors),
        columns=LossColumns(
            target_R=in_loss(lambda sample: np.array(sample.trajectory.tokens)),
            engine_logprob_R=in_loss(lambda sample: column.policy_logprob(sample.trajectory)).to(dtype),
            behaviour_R=in_loss(lambda sample: sample.behaviour_N).to(dtype),
            is_current_R=in_loss(lambda sample: column.is_of_version(sample.trajectory, version)),
            advantage_R=in_loss(lambda sample: sample.advantage_N).to(dtype),
            weight_R=in_loss(lambda sample: sample.weight_N).to(dtype),
        ),
    )


def _lay_out(sequences: list[_Sequence]) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Pieces of packed ids and positions, and for each sequence where in the packed tokens its own tokens lie."""
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    unrolled: list[np.ndarray] = []
    prompt_at: dict[tuple[int, ...], np.ndarray] = {}
    placed = 0

    def place(tokens: tuple[int, ...] | list[int], first_position: int) -> np.ndarray:
        nonlocal placed
        ids.append(np.array(tokens, dtype=np.int64))
        positions.append(np.arange(first_position, first_position + len(tokens)))
        placed += len(tokens)
        return np.arange(placed - len(tokens), placed)

    for sequence in sequences:
        if sequence.prompt not in prompt_at:
            prompt_at[sequence.prompt] = place(sequence.prompt, 0)
        response_at = place(sequence.response, len(sequence.prompt))
        unrolled.append(np.concatenate((prompt_at[sequence.prompt], response_at)))
    return ids, positions, unrolled


def _constants_last(sequences: list[_Sequence], unrolled: list[np.ndarray]) -> tuple[int, np.ndarray, list[np.ndarray]]:
    """How many packed tokens are not constant, the order that puts those first, and `unrolled` in that order."""
    constant = np.zeros(max(index[-1] for index in unrolled) + 1, dtype=bool)
    for sequence, index in zip(sequences, unrolled, strict=True):
        marks = sequence.sample.constant_N
        if marks is not None:  # the position of response token t predicts token t + 1
            constant[index[len(sequence.prompt) :]] = marks[1 : len(sequence.response) + 1]
    order = np.argsort(constant, kind="stable")
    place = np.argsort(order)
    return len(constant) - int(constant.sum()), order, [place[index] for index in unrolled]
