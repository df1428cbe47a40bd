"""Small things to learn from: a config that runs in a blink, experiences written out, shards played here."""

import asyncio

import torch

from untail.embodied.build import make_policy, make_simulator
from untail.embodied.config import EmbodiedConfig, preset
from untail.embodied.experience import Experience
from untail.embodied.play import Actor, Shard
from untail.embodied.policy import GaussianPolicy

CPU = torch.device("cpu")


def small(algo: str = "ppo", **changes) -> EmbodiedConfig:
    fields = {"envs": 8, "shards": 2, "horizon": 6, "hidden": 8, "learn": {"epochs": 2, "minibatches": 2}}
    fields |= {"episode": 6, "group": 2} if algo == "grpo" else {"episode": 4}
    return preset("cartpole", algo, fields | changes)


def policy_of(config: EmbodiedConfig) -> GaussianPolicy:
    return make_policy(config)


def play(config: EmbodiedConfig, policy: GaussianPolicy, iteration: int = 0) -> dict[int, Experience]:
    actor = Actor(policy, config, CPU)
    actor.begin(iteration)
    shards = [Shard(number, make_simulator(config, CPU), config) for number in range(config.shards)]
    return {shard.number: asyncio.run(shard.play(actor.act, iteration)) for shard in shards}


def experience(reward_TN, ended_TN=None, cut_TN=None) -> Experience:
    """Observations are numbers of rows: obs of step t in environment n is [10 n + t], what it led to [10 n + t + 1]."""
    reward_TN = torch.tensor(reward_TN, dtype=torch.float32)
    steps, envs = reward_TN.shape
    none_TN = torch.zeros(steps, envs, dtype=torch.bool)
    obs_TN = torch.arange(steps)[:, None] + 10.0 * torch.arange(envs)
    return Experience(
        obs_TN[..., None],
        torch.zeros(steps, envs, 1),
        torch.zeros(steps, envs),
        reward_TN,
        none_TN if ended_TN is None else torch.tensor(ended_TN),
        none_TN if cut_TN is None else torch.tensor(cut_TN),
        obs_TN[..., None] + 1,
    )
