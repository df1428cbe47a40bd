"""The update: it improves what it should, two learners take the steps of one, nothing broken moves a weight."""

import threading

import pytest
import torch
from tests.unit.embodied.small import play, policy_of, small

from untail.embodied.learner import Learner


def weights(policy):
    return torch.cat([tensor.flatten().double() for tensor in policy.state_dict().values()])


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Meeting:
    """Sums over the threads of a group, as a process group does over processes."""

    def __init__(self, count):
        self.barrier, self.given, self.count = threading.Barrier(count, timeout=120), {}, count

    def total(self, tensor):
        self.given[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        result = sum(self.given[who] for who in sorted(self.given))
        self.barrier.wait()
        tensor.copy_(result)


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_two_learners_take_the_steps_of_one(algo):
    config = small(algo)
    shards = play(config, policy_of(config))
    alone = Learner(policy_of(config), config)
    alone.learn(shards, 0)
    meeting = Meeting(2)
    pair = [Learner(policy_of(config), config, meeting.total) for _ in range(2)]
    threads = [
        threading.Thread(target=learner.learn, args=({number: shards[number]}, 0))
        for number, learner in enumerate(pair)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert torch.equal(weights(pair[0].policy), weights(pair[1].policy))
    torch.testing.assert_close(weights(pair[0].policy), weights(alone.policy), atol=1e-5, rtol=1e-4)
    assert not torch.equal(weights(alone.policy), weights(policy_of(config)))


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_actions_that_were_better_become_likelier(algo):
    config = small(algo, envs=64, learn={"epochs": 4, "minibatches": 2, "lr": 1e-3, "gamma": 0.0, "lam": 0.0})
    policy = policy_of(config)
    shards = play(config, policy)
    for shard in shards.values():  # pushing right is what pays
        shard.reward_TN.copy_(shard.action_TNA[..., 0])
    before = policy.actor(torch.zeros(1, 5)).item()
    figures = Learner(policy, config).learn(shards, 0)
    assert policy.actor(torch.zeros(1, 5)).item() > before
    assert figures["skipped"] == 0
    assert figures["approx_kl"] > 0


def test_the_critic_learns_the_returns(monkeypatch):
    config = small(envs=64, learn={"epochs": 40, "minibatches": 2, "lr": 1e-2, "gamma": 0.0, "reward_scale": 1.0})
    policy = policy_of(config)
    shards = play(config, policy)
    for shard in shards.values():
        shard.reward_TN.fill_(0.7)
    monkeypatch.setattr(policy.normaliser, "add", lambda sums: None)  # it would see other observations afterwards
    Learner(policy, config).learn(shards, 0)
    assert policy.value(shards[0].obs_TNO).mean().item() == pytest.approx(0.7, abs=0.1)


def test_grpo_leaves_the_critic_alone():
    config = small("grpo")
    policy = policy_of(config)
    Learner(policy, config).learn(play(config, policy), 0)
    assert same(policy.critic, policy_of(config).critic)


def test_a_reward_that_is_not_finite_moves_nothing_and_is_counted():
    config = small()
    policy = policy_of(config)
    shards = play(config, policy)
    shards[0].reward_TN[0, 0] = float("nan")
    figures = Learner(policy, config).learn(shards, 0)
    assert figures["skipped"] == config.learn.epochs * config.learn.minibatches
    assert same(policy, policy_of(config))
