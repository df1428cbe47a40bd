"""The roles as workers: environments, policy and learner, each in processes of its own, or all three in one.

Invariant: the loop calls `load`, `serve`, `play` and `learn`, whatever the mode. Between workers observations, actions
and experiences travel over channels, by shard; within a `Crew`, which is all three roles at once, nothing travels.
Whose turn it is on which devices is the loop's affair.
"""

import asyncio
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from untail.embodied.build import make_policy, make_simulator
from untail.embodied.config import EmbodiedConfig
from untail.embodied.experience import Experience
from untail.embodied.layout import Layout
from untail.embodied.learner import Learner
from untail.embodied.play import Actor, Shard
from untail.flow.worker import Worker

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Played:
    """Returns of the episodes that came to their end, and the mean reward of a step in each of the worker's shards."""

    returns: list[float]
    rewards: list[float]


class Role(Worker):
    def __init__(self, config: EmbodiedConfig, layout: Layout):
        self.config, self.layout = config, layout
        self.device = torch.device("cuda" if self.devices and torch.cuda.is_available() else "cpu")
        self._experiences = self.channel("experiences")
        self._actions = self.channel("actions")


class EnvWorker(Role):
    def __init__(self, config: EmbodiedConfig, layout: Layout):
        super().__init__(config, layout)
        numbers = layout.shards_of(layout.env, self.rank)
        self.shards = [Shard(number, make_simulator(config, self.device), config) for number in numbers]
        self._policies = [self.channel(f"observations for policy[{rank}]") for rank in range(len(layout.policy))]

    async def play(self, iteration: int) -> Played:
        """All shards of this worker, each as far as the horizon; what they went through goes to the learner."""
        played = await asyncio.gather(*(shard.play(self.act, iteration) for shard in self.shards))
        for shard, experience in zip(self.shards, played, strict=True):
            await self.give(shard.number, experience)
        returns = [number for shard in self.shards for number in shard.finished]
        return Played(returns, [experience.reward_TN.mean().item() for experience in played])

    async def act(self, shard: int, obs_NO: Tensor) -> tuple[Tensor, Tensor]:
        self._policies[self.layout.policy_of(shard)].put((shard, obs_NO))
        action_NA, logprob_N = await self._actions.get(key=shard)
        return action_NA, logprob_N

    async def give(self, shard: int, experience: Experience) -> None:
        await self._experiences.put(experience, key=shard)

    def close(self) -> None:
        for shard in self.shards:
            shard.simulator.close()
        super().close()


class PolicyWorker(Role):
    def __init__(self, config: EmbodiedConfig, layout: Layout):
        super().__init__(config, layout)
        self.actor = Actor(make_policy(config), config, self.device)
        self._observations = self.channel(f"observations for policy[{self.rank}]")

    def load(self, weights: Weights, iteration: int) -> None:
        """What acts in this iteration."""
        self.actor.policy.load_state_dict(weights)
        self.actor.begin(iteration)

    async def serve(self) -> None:
        """Act for every step of the iteration, whoever asks first."""
        shards = self.layout.shards_of(self.layout.policy, self.rank)
        for _ in range(self.config.horizon * len(shards)):
            shard, obs_NO = await self._observations.get()
            self._actions.put(await self.actor.act(shard, obs_NO), key=shard)


class LearnWorker(Role):
    def __init__(self, config: EmbodiedConfig, layout: Layout):
        super().__init__(config, layout)
        self.learner = Learner(make_policy(config).to(self.device), config)

    def meet(self, address: str) -> None:
        """Learners of a group add up their gradients from here on."""
        learners = len(self.layout.learn)
        if self.rank < learners:  # of a crew not all need to learn
            kind = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(kind, f"tcp://{address}", rank=self.rank, world_size=learners)
            self.learner.total = self._total

    def weights(self) -> Weights:
        return self.learner.policy.state_dict()

    async def learn(self, iteration: int) -> dict[str, float]:
        numbers = self.layout.shards_of(self.layout.learn, self.rank)
        if not numbers:
            return {}
        shards = {number: (await self.take(number)).to(self.device) for number in numbers}
        return self.learner.learn(shards, iteration)

    async def take(self, shard: int) -> Experience:
        experience: Experience = await self._experiences.get(key=shard)
        return experience

    def close(self) -> None:
        if self.learner.total is not None:
            dist.destroy_process_group()
        super().close()

    def _total(self, tensor: Tensor) -> None:
        on_device = tensor.to(self.device)
        dist.all_reduce(on_device)
        tensor.copy_(on_device)


class Crew(EnvWorker, PolicyWorker, LearnWorker):
    """All three roles in one process: it acts for its own environments, and learns from what they went through."""

    def __init__(self, config: EmbodiedConfig, layout: Layout):
        super().__init__(config, layout)
        self._at_hand: dict[int, Experience] = {}

    async def act(self, shard: int, obs_NO: Tensor) -> tuple[Tensor, Tensor]:
        return await self.actor.act(shard, obs_NO)

    async def serve(self) -> None:
        """Nobody else asks."""

    async def give(self, shard: int, experience: Experience) -> None:
        if self.layout.learner_of(shard) == self.rank:
            self._at_hand[shard] = experience
        else:
            await super().give(shard, experience)

    async def take(self, shard: int) -> Experience:
        return self._at_hand.pop(shard) if shard in self._at_hand else await super().take(shard)
