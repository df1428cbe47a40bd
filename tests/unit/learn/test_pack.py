"""Packing: every loss token once, with its own predictor; prompts shared; budgets kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.learn.helpers import group, uneven_batch

from untail.learn.pack import MicroBatch, pack
from untail.learn.sample import Sample

VOCAB = 50


def samples_from(groups) -> list[Sample]:
    """Advantages that tell the tokens apart: 1, 2, 3, ... over the whole batch."""
    samples, count = [], 1
    for trajectory in (trajectory for members in groups for trajectory in members.trajectories):
        length = len(trajectory.tokens)
        weight = np.array(trajectory.from_model, dtype=np.float64)
        samples.append(Sample(trajectory, np.arange(count, count + length, dtype=np.float64), weight))
        count += length
    return samples


def pack_all(samples: list[Sample], token_budget: int) -> list[MicroBatch]:
    return pack(samples, token_budget, torch.device("cpu"), torch.float64)


def whole_sequences(micro: MicroBatch) -> list[list[int]]:
    return [part.tolist() for part in micro.ids_T[micro.unrolled_U].split(micro.lengths)]


def test_every_loss_token_once_with_its_columns():
    samples = samples_from(uneven_batch(VOCAB).groups)
    expected = {}
    for sample in samples:
        trajectory = sample.trajectory
        sequence = [*trajectory.prompt.tokens, *trajectory.tokens]
        for t, ours in enumerate(trajectory.from_model):
            if ours:
                at = len(trajectory.prompt.tokens) + t
                row = (sequence[at - 1], at - 1, sequence[at], trajectory.policy_logprob[t], 1.0)
                expected[sample.advantage_N[t]] = row
    found = {}
    for micro in pack_all(samples, 40):
        columns = micro.columns
        predictor, position = micro.ids_T[micro.predictor_R], micro.positions_T[micro.predictor_R]
        rows = (predictor, position, columns.target_R, columns.engine_logprob_R, columns.weight_R)
        keys = columns.advantage_R.tolist()
        assert not found.keys() & set(keys)
        found |= dict(zip(keys, zip(*(row.tolist() for row in rows), strict=True), strict=True))
    assert found == expected


def test_a_prompt_is_packed_once_and_unrolls_to_whole_sequences():
    members = group("g", [4, 6, 4, 5], [0, 1, 0, 1], VOCAB, prompt_length=7)
    (micro,) = pack_all(samples_from([members]), 1000)
    assert len(micro.ids_T) == 7 + 3 + 5 + 3 + 4, "the last token of a response predicts nothing"
    assert micro.lengths == sorted(micro.lengths)
    expected = [[*t.prompt.tokens, *t.tokens[:-1]] for t in members.trajectories]
    assert sorted(whole_sequences(micro)) == sorted(expected)
    assert torch.equal(micro.unrolled_U[micro.home_T], torch.arange(len(micro.ids_T)))


def test_sequences_end_with_their_last_predictor():
    members = group("g", [12], [1.0], VOCAB, prompt_length=3)
    sample = samples_from([members])[0]
    sample.weight_N[5:] = 0
    (micro,) = pack_all([sample], 1000)
    assert micro.lengths == [3 + 4]
    assert len(micro.columns.target_R) == 5


def test_samples_without_loss_tokens_are_left_out():
    samples = samples_from([group("g", [3, 4], [0, 1], VOCAB)])
    for sample in samples:
        sample.weight_N[:] = 0
    assert pack_all(samples, 100) == []
    assert pack_all([], 100) == []


def test_an_empty_response_is_left_out():
    (micro,) = pack_all(samples_from([group("g", [0, 4], [0, 1], VOCAB)]), 100)
    assert len(micro.lengths) == 1


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=6),
    token_budget=st.integers(1, 120),
)
def test_budget(lengths, token_budget):
    groups = [group(str(i), part, [0.0] * len(part), VOCAB, prompt_length=i + 1) for i, part in enumerate(lengths)]
    micros = pack_all(samples_from(groups), token_budget)
    assert sum(len(micro.columns.target_R) for micro in micros) == sum(map(sum, lengths))
    for micro in micros:
        assert len(micro.ids_T) <= token_budget or len(micro.lengths) == 1
        assert sum(micro.lengths) == len(micro.unrolled_U)


@pytest.mark.parametrize("token_budget", [1, 8])
def test_a_sequence_over_the_budget_has_a_micro_batch_of_its_own(token_budget):
    micros = pack_all(samples_from([group("g", [20, 30, 2], [0, 1, 0], VOCAB, prompt_length=5)]), token_budget)
    assert [micro.lengths for micro in micros] == [[24], [34], [6]]


def test_rows_cuts_all_columns():
    (micro,) = pack_all(samples_from([group("g", [6, 4], [0, 1], VOCAB)]), 1000)
    micro.columns.prox_R = torch.arange(10.0)
    part = micro.columns.rows(slice(2, 5))
    assert torch.equal(part.target_R, micro.columns.target_R[2:5])
    assert part.prox_R is not None
    assert part.prox_R.tolist() == [2, 3, 4]
    assert part.reference_R is None
