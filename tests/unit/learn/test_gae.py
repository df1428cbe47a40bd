"""Generalised advantage estimation and PPO's advantages, against sums written out."""

import numpy as np
import pytest
from tests.unit.learn.helpers import group

from untail.learn.advantage import ADVANTAGES
from untail.learn.gae import Estimate, final_return, gae

VALUES = np.array([0.3, -0.2, 0.9, 0.5, 0.1])


def plain_gae(values, reward, bootstrap, gamma, lam) -> list[float]:
    """A_t = sum over k of (gamma lam)^k delta_(t+k), from the definition."""
    after = [*values[1:], bootstrap]
    rewards = [0.0] * (len(values) - 1) + [reward]
    delta = [r + gamma * nxt - v for r, nxt, v in zip(rewards, after, values, strict=True)]
    return [sum((gamma * lam) ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (1.0, 0.0), (0.0, 0.5)])
@pytest.mark.parametrize(("reward", "bootstrap"), [(1.0, 0.0), (0.0, 0.7), (-1.0, 0.0)])
def test_gae_is_the_discounted_sum_of_errors(gamma, lam, reward, bootstrap):
    ours = gae(VALUES, reward, bootstrap, gamma, lam)
    assert ours == pytest.approx(plain_gae(VALUES, reward, bootstrap, gamma, lam), abs=1e-12)


def test_with_lambda_one_the_return_is_the_reward_whatever_the_critic_says():
    assert gae(VALUES, 0.8, 0.0, 1.0, 1.0) + VALUES == pytest.approx(0.8, abs=1e-12)


def test_cut_in_two_with_the_true_rest_it_is_the_same():
    """A bootstrap that knows what the rest's first token is worth (its return) makes the cut invisible at lambda 1."""
    whole = gae(VALUES, 0.8, 0.0, 0.9, 1.0)
    later = gae(VALUES[3:], 0.8, 0.0, 0.9, 1.0)
    first = gae(VALUES[:3], 0.0, later[0] + VALUES[3], 0.9, 1.0)
    assert np.concatenate((first, later)) == pytest.approx(whole, abs=1e-12)


def test_of_nothing():
    assert len(gae(np.empty(0), 1.0, 0.0, 1.0, 0.9)) == 0


def test_the_return_is_discounted_by_the_models_own_tokens():
    (trajectory,) = group("g", [8], [2.0], 50, reply_at=3).trajectories  # written: 0 1 2 . . . 6 7
    assert final_return(trajectory, np.array([0, 2, 6, 7, 8]), 0.5).tolist() == [2 / 16, 2 / 4, 2 / 2, 2.0, 2.0]


def make(**fields):
    return ADVANTAGES.build({"name": "ppo", **fields}, "learn.advantage", 512)


def test_ppo_over_the_part_that_is_trained_replies_left_out():
    members = group("g", [9, 4], [1.0, 0.0], 50, reply_at=3)
    random = np.random.default_rng(0)
    first, second = members.trajectories
    estimates = {
        first.id: Estimate(2, 8, random.normal(size=9), 0.0, 0.4),
        second.id: Estimate(0, 4, random.normal(size=4), -1.0),
    }
    ppo = make(gamma=0.9, lam=0.8)
    columns = ppo.per_token(members, estimates)
    for trajectory, ours, trained in zip(members.trajectories, columns, ([2, 6, 7], [0, 1, 2]), strict=True):
        estimate = estimates[trajectory.id]
        expected = np.zeros(len(trajectory.tokens))
        values = estimate.value_N[trained]
        expected[trained] = plain_gae(values, estimate.reward, estimate.bootstrap, 0.9, 0.8)
        assert ours == pytest.approx(expected, abs=1e-12)


def test_whitening_is_over_the_tokens_in_the_loss():
    columns, used = [np.array([1.0, 5.0, 9.0]), np.array([3.0])], [np.array([True, False, True]), np.array([True])]
    kept = np.array([1.0, 9.0, 3.0])
    white = (kept - kept.mean()) / (kept.std() + 1e-8)
    ours = make().over_batch(columns, used)
    assert ours[0] == pytest.approx([white[0], 0.0, white[1]])
    assert ours[1] == pytest.approx([white[2]])
    assert make(whiten=False).over_batch(columns, used) is columns
    assert make().over_batch([], []) == []
