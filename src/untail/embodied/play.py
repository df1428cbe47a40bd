"""A shard of environments against a policy: the inner loop, wherever environments and policy may be.

Invariant: it waits only for actions. So several shards in one process overlap: while one waits, another steps.
"""

from collections.abc import Awaitable, Callable

import torch
from torch import Tensor

from untail.embodied.config import EmbodiedConfig
from untail.embodied.experience import Experience, Recorder
from untail.embodied.policy import GaussianPolicy
from untail.embodied.simulator import Simulator

Act = Callable[[int, Tensor], Awaitable[tuple[Tensor, Tensor]]]
"""Of a shard's number and its observations [N, O]: actions [N, A] and their log-probs [N]."""


class Shard:
    """Environments that go on from iteration to iteration with PPO, and begin anew in each with GRPO."""

    def __init__(self, number: int, simulator: Simulator, config: EmbodiedConfig):
        self.number, self.simulator, self.config = number, simulator, config
        self.finished: list[float] = []
        """Returns of the episodes that came to their end in the last iteration."""
        self.obs_NO: Tensor | None = None
        self._return_N: Tensor | None = None  # of the episodes under way

    async def play(self, act: Act, iteration: int) -> Experience:
        obs_NO = self.obs_NO
        if obs_NO is None or self.config.algo == "grpo":
            obs_NO = self.simulator.reset(self.config.stream("states", iteration, self.number), self.config.group)
            self._return_N = torch.zeros(len(obs_NO))
        recorder = Recorder()
        for _ in range(self.config.horizon):
            action_NA, logprob_N = await act(self.number, obs_NO)
            action_NA, logprob_N = action_NA.to(obs_NO.device), logprob_N.to(obs_NO.device)
            outcome = self.simulator.step(action_NA)
            recorder.add(obs_NO, action_NA, logprob_N, outcome)
            obs_NO = outcome.obs_NO
        self.obs_NO = obs_NO
        experience = recorder.experience()
        self._count_returns(experience)
        return experience

    def _count_returns(self, experience: Experience) -> None:
        self.finished = []
        assert self._return_N is not None
        for reward_N, over_N in zip(experience.reward_TN.cpu(), experience.over_TN.cpu(), strict=True):
            self._return_N += reward_N
            if over_N.any():
                self.finished += self._return_N[over_N].tolist()
                self._return_N[over_N] = 0


class Actor:
    """A policy that acts for shards, each with random numbers of its own."""

    def __init__(self, policy: GaussianPolicy, config: EmbodiedConfig, device: torch.device):
        self.policy, self._config, self._device = policy.to(device), config, device
        self._generators: dict[int, torch.Generator] = {}

    def begin(self, iteration: int) -> None:
        """Forget the random streams of the last iteration."""
        seeds = [self._config.stream("actions", iteration, shard) for shard in range(self._config.shards)]
        self._generators = {shard: torch.Generator(self._device).manual_seed(seed) for shard, seed in enumerate(seeds)}

    async def act(self, shard: int, obs_NO: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy.act(obs_NO.to(self._device), self._generators[shard])
