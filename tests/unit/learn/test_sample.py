"""What a token is worth: advantage and weight columns, and their normalisation over a minibatch."""

import numpy as np
import pytest
from tests.unit.learn.helpers import group, rules

from untail.errors import UserError
from untail.learn.sample import MIDDLING, normalise, samples_of, teaches
from untail.types import Segment

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
    common = normalise(samples, loss, 10)
    for sample, own in zip(samples, ours, strict=True):
        divisor = {"token": sum(ours), "sequence": 3 * own, "constant": 3 * 10}[loss]
        for weight, from_model in zip(sample.weight_N, sample.trajectory.from_model, strict=True):
            assert weight / common == pytest.approx(from_model / divisor, abs=1e-15)


@pytest.mark.parametrize("loss", ["token", "sequence", "constant"])
def test_samples_that_come_in_portions_weigh_the_same_and_their_divisors_add_up(loss):
    whole, portions = make(), make()
    divisor = normalise(whole, loss, 10)
    assert normalise(portions[:1], loss, 10) + normalise(portions[1:], loss, 10) == divisor
    assert all((one.weight_N == other.weight_N).all() for one, other in zip(whole, portions, strict=True))


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


# ---- what is composed -----------------------------------------------------------------------------------------------


def branched():
    """Three siblings of two segments each: an original, its copy, and one that the group pruned after a segment."""
    members = group("g", [10, 8, 5], [1.0, 0.0, -1.0], 50, reply_at=1)
    original, copy, pruned = members.trajectories
    copy.parent, copy.forked_at, pruned.stopped = original.id, 5, "tournament"
    for trajectory in members.trajectories:
        ends = [5, len(trajectory.tokens)] if len(trajectory.tokens) > 5 else [5]
        trajectory.segments = [Segment(b, e, "boundary") for b, e in zip([0, 5], ends, strict=False)]
    original.entropy = [1.0] * 5 + [0.001] * 5
    return members


@pytest.mark.parametrize("masks", [{}, {"pruned": {}}, {"low_entropy": {}}, {"pruned": {}, "low_entropy": {}}], ids=str)
@pytest.mark.parametrize("credit", ["once", "progressive", "none"])
def test_segment_aware_advantage_against_a_plain_loop(masks, credit):
    """8.6: A_seg = A (1 - pruned) w_entropy, times the clone rule; statistics are of all three."""
    members = branched()
    rewards = [trajectory.reward for trajectory in members.trajectories]
    samples = samples_of(members, rules(advantage="dr_grpo", masks=masks, credit=credit))
    for number, sample in enumerate(samples):
        trajectory = sample.trajectory
        for segment in trajectory.segments:
            pruned = "pruned" in masks and trajectory.stopped == "tournament"
            flat = "low_entropy" in masks and trajectory.entropy[segment.begin] < 0.02
            for t in range(segment.begin, segment.end):
                shared = number < 2 and t < 5
                clone = {"once": 1 / 2, "progressive": 0.25, "none": 1}[credit] if shared else 1
                expected = (rewards[number] - sum(rewards) / 3) * (not pruned) * (not flat) * clone
                expected *= trajectory.from_model[t]
                assert sample.advantage_N[t] * sample.weight_N[t] == pytest.approx(expected, abs=1e-12)


def test_what_was_stopped_is_in_the_statistics_and_what_is_masked_is_not():
    members = branched()
    stopped = samples_of(members, rules(advantage="dr_grpo"))
    assert [sample.advantage_N[0] for sample in stopped] == pytest.approx([1.0, 0.0, -1.0])
    members.trajectories[2].masked = True
    masked = samples_of(members, rules(advantage="dr_grpo"))
    assert [sample.advantage_N[0] for sample in masked] == pytest.approx([0.5, -0.5])


def test_what_a_mask_takes_out_is_not_made_up_for():
    """The others weigh what they weighed."""
    plain, masked = (samples_of(branched(), rules(masks=masks)) for masks in ({}, {"low_entropy": {}}))
    for samples in (plain, masked):
        normalise(samples, "token", 10)
    assert masked[0].weight_N[:5].tolist() == plain[0].weight_N[:5].tolist()
    assert not masked[0].weight_N[5:].any()
    assert masked[1].weight_N.tolist() == plain[1].weight_N.tolist()


def test_all_masked():
    members = branched()
    for trajectory in members.trajectories:
        trajectory.masked = True
    assert samples_of(members, rules()) == []


@pytest.mark.parametrize("damage", ["behaviour_logprob", "policy_logprob"])
@pytest.mark.parametrize("gone", ["empty", "nan"])
def test_log_probs_that_a_backend_did_not_give(damage, gone):
    members = branched()
    count = len(members.trajectories[1].tokens)
    setattr(members.trajectories[1], damage, [] if gone == "empty" else [float("nan")] * count)
    assert len(samples_of(members, rules(importance="pois"))) == 3
    with pytest.raises(
        UserError, match=r"learn\.importance needs the log-prob of every token, and trajectory g\.1 has"
    ):
        samples_of(members, rules(importance="tis"))


def test_weights_are_not_far_from_one_whatever_the_constant_loss_divides_by():
    """They multiply gradients that go through fp16: 65504 at most."""
    samples = make()
    normalise(samples, "sequence", 2**20)
    assert max(sample.weight_N.max() for sample in samples) <= MIDDLING
