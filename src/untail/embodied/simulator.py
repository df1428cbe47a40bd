"""What a batch of environments is to the loop, and which there are.

Invariant: a step takes and gives tensors of one row per environment. Environments begin anew by themselves: a row whose
episode is over has the next one's first observation in `obs_NO`, and its own last one in `final_NO`.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from untail.embodied.config import EmbodiedConfig


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ended`: there is no rest, it is worth 0. `cut`: the time is over, the rest goes unseen. Never both."""

    obs_NO: Tensor
    reward_N: Tensor
    ended_N: Tensor
    cut_N: Tensor
    final_NO: Tensor


class Simulator(Protocol):
    obs_size: int
    action_size: int

    def reset(self, seed: int, group: int) -> Tensor:
        """Begin everywhere; the first observations, [N, O]. The same seed gives the same states, and each is that of
        `group` neighbours."""

    def step(self, action_NA: Tensor) -> Outcome: ...

    def close(self) -> None: ...


def make_simulator(config: EmbodiedConfig, device: torch.device) -> Simulator:
    """The environments of one shard."""
    if config.env == "cartpole":
        from untail.embodied.torch_env import CartPole

        return CartPole(config.shard_envs, config.episode, device)
    from untail.embodied.gym_env import HalfCheetah

    return HalfCheetah(config.shard_envs, config.episode, device)


def refuse_missing(config: EmbodiedConfig) -> None:
    """Before any worker is started."""
    if config.env == "halfcheetah":
        from untail.embodied.gym_env import refuse_missing_packages

        refuse_missing_packages()
