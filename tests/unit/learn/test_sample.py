"""What a token is worth: advantage and weight columns, and their normalisation over a minibatch."""

import numpy as np
import pytest
from tests.unit.learn.helpers import group, rules

from untail.learn.sample import normalise, samples_of, teaches

LENGTHS, REPLY_AT = [9, 4, 7], 2


def make(rewards=(0.0, 1.0, 1.0), reply_at=REPLY_AT):
    members = group("g", LENGTHS, list(rewards), 50, reply_at=reply_at)
    return samples_of(members, rules(advantage="dr_grpo"))


def test_columns_are_as_long_as_the_response_and_replies_weigh_nothing():
    for sample, value in zip(make(), [-2 / 3, 1 / 3, 1 / 3], strict=True):
        assert len(sample.advantage_N) == len(sample.weight_N) == len(sample.trajectory.tokens)
        assert sample.advantage_N == pytest.approx(value)
        assert sample.weight_N.tolist() == [float(ours) for ours in sample.trajectory.from_model]
        assert sample.weight_N[REPLY_AT : REPLY_AT + 2].tolist() == [0, 0]


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
def test_normalise_against_a_plain_loop(loss):
    samples = make()
    ours = [sum(sample.trajectory.from_model) for sample in samples]
    normalise(samples, loss, 10)
    for sample, own in zip(samples, ours, strict=True):
        divisor = {"token": sum(ours), "sequence": 3 * own, "constant": 3 * 10}[loss]
        for weight, from_model in zip(sample.weight_N, sample.trajectory.from_model, strict=True):
            assert weight == pytest.approx(from_model / divisor, abs=1e-15)


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
def test_a_sample_without_model_tokens_is_counted_and_divides_nothing(loss):
    samples = make(reply_at=0)
    samples[1].weight_N[:] = 0
    normalise(samples, loss, 10)
    assert not samples[1].weight_N.any()
    assert all(np.isfinite(sample.weight_N).all() for sample in samples)


def test_teaches():
    assert teaches(make())
    assert not teaches(make(rewards=(0.4, 0.4, 0.4)))
    masked = make()
    for sample in masked:
        sample.weight_N[:] = 0
    assert not teaches(masked)
