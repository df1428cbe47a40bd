"""What is recorded is what happened, whoever else plays."""

import asyncio

import torch
from tests.unit.embodied.small import CPU, experience, play, policy_of, small

from untail.embodied.build import make_simulator
from untail.embodied.play import Actor, Shard


def test_each_step_begins_where_the_one_before_led():
    shard = play(small(), policy_of(small()))[0]  # episodes of 4, 6 steps
    assert shard.obs_TNO.shape == (6, 4, 5)
    assert shard.over_TN.sum(0).tolist() == [1] * 4
    goes_on = ~shard.over_TN[:-1]
    assert torch.equal(shard.obs_TNO[1:][goes_on], shard.next_TNO[:-1][goes_on])
    assert not torch.equal(shard.obs_TNO[4], shard.next_TNO[3])


def test_ppo_goes_on_where_it_was_and_grpo_begins_anew():
    for algo, goes_on in (("ppo", True), ("grpo", False)):
        config = small(algo, episode=6)
        actor = Actor(policy_of(config), config, CPU)
        shard = Shard(0, make_simulator(config, CPU), config)
        parts = []
        for iteration in range(2):
            actor.begin(iteration)
            parts.append(asyncio.run(shard.play(actor.act, iteration)))
        if not goes_on:
            starts = [part.obs_TNO[0] for part in parts]
            assert all(torch.equal(start[::2], start[1::2]) for start in starts)  # groups of 2
            assert not torch.equal(*starts)
        assert not torch.equal(parts[0].logprob_TN, parts[1].logprob_TN)


def test_shards_overlap_while_they_wait_and_see_nothing_of_each_other():
    config, log = small(), []
    actor = Actor(policy_of(config), config, CPU)
    actor.begin(0)

    async def slow(shard, obs):
        log.append(shard)
        await asyncio.sleep(0)  # another shard's turn
        return await actor.act(shard, obs)

    async def side_by_side():
        shards = [Shard(number, make_simulator(config, CPU), config) for number in range(2)]
        return await asyncio.gather(*(shard.play(slow, 0) for shard in shards))

    together = asyncio.run(side_by_side())
    assert log == [0, 1] * 6
    for number, alone in play(config, policy_of(config)).items():
        assert torch.equal(together[number].obs_TNO, alone.obs_TNO)
        assert torch.equal(together[number].logprob_TN, alone.logprob_TN)


def test_the_first_episode_and_its_return():
    steps = experience(
        [[1, 10], [2, 20], [3, 30]],
        ended_TN=[[False, False], [True, False], [False, False]],
        cut_TN=[[False, True], [False, False], [False, True]],
    )
    returns, first = steps.returns_of_first_episodes()
    assert returns.tolist() == [3, 10]
    assert first.tolist() == [[True, True], [True, False], [False, False]]


def test_returns_of_finished_episodes_reach_across_iterations():
    config = small(episode=4, horizon=3)  # over after 4 steps: in the second iteration, and again in the third
    actor = Actor(policy_of(config), config, CPU)
    shard = Shard(0, make_simulator(config, CPU), config)
    rewards, finished = [], []
    for iteration in range(3):
        actor.begin(iteration)
        rewards.append(asyncio.run(shard.play(actor.act, iteration)).reward_TN)
        finished.append(shard.finished)
    reward = torch.cat(rewards)
    assert finished[0] == []
    torch.testing.assert_close(torch.tensor(finished[1]), reward[:4].sum(0))
    torch.testing.assert_close(torch.tensor(finished[2]), reward[4:8].sum(0))
