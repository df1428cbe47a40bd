"""What a config names, made: environments, policy."""

import torch

from untail.embodied.config import EmbodiedConfig, EnvName
from untail.embodied.gym_env import HalfCheetah, refuse_missing_packages
from untail.embodied.policy import GaussianPolicy
from untail.embodied.simulator import Simulator
from untail.embodied.torch_env import CartPole

SIMULATORS: dict[EnvName, type[CartPole] | type[HalfCheetah]] = {"cartpole": CartPole, "halfcheetah": HalfCheetah}


def refuse_missing(config: EmbodiedConfig) -> None:
    """Before any worker is started."""
    if config.env == "halfcheetah":
        refuse_missing_packages()


def on_host(config: EmbodiedConfig) -> bool:
    """Its environments take no device: they step on the CPU, and devices are GPUs."""
    return SIMULATORS[config.env].on_host and torch.cuda.is_available()


def make_simulator(config: EmbodiedConfig, device: torch.device) -> Simulator:
    """The environments of one shard."""
    return SIMULATORS[config.env](config.shard_envs, config.episode, device)


def make_policy(config: EmbodiedConfig) -> GaussianPolicy:
    kind = SIMULATORS[config.env]
    return GaussianPolicy(kind.obs_size, kind.action_size, config.hidden, config.log_std, config.seed)
