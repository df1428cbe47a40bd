"""A Gaussian policy and a critic, two small networks over the same normalised observations.

Invariant: noise comes from the caller's generator, so that the same weights, observations and stream give the same
actions in whatever process. The normaliser moves only in `observe`, between an update and the next rollout: the policy
that learns sees observations as the one that acted did.
"""

import math

import torch
from torch import Tensor, nn

LARGEST_OBSERVATION = 10.0  # after normalisation
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Normaliser(nn.Module):
    """Mean 0 and variance 1 over all observations so far; its sums add up over workers."""

    def __init__(self, size: int):
        super().__init__()
        self.sums: Tensor  # count, sum and sum of squares
        self.register_buffer("sums", torch.zeros(1 + 2 * size, dtype=torch.float64))
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(size))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(size))

    def forward(self, obs_RO: Tensor) -> Tensor:
        normal_RO = (obs_RO - self.mean) * self.scale
        return normal_RO.clamp(-LARGEST_OBSERVATION, LARGEST_OBSERVATION)

    def sums_of(self, obs_RO: Tensor) -> Tensor:
        """What `add` takes, of these observations."""
        obs_RO = obs_RO.double()
        count = torch.full((1,), len(obs_RO), dtype=torch.float64, device=obs_RO.device)
        return torch.cat([count, obs_RO.sum(0), (obs_RO**2).sum(0)])

    def add(self, sums: Tensor) -> None:
        self.sums += sums
        count, total_O, squares_O = self.sums.split([1, len(self.mean), len(self.mean)])
        mean_O = total_O / count
        variance_O = (squares_O / count - mean_O**2).clamp(min=1e-6)
        self.mean.copy_(mean_O)
        self.scale.copy_(variance_O.rsqrt())


class GaussianPolicy(nn.Module):
    def __init__(self, obs_size: int, action_size: int, hidden: int, log_std: float, seed: int):
        super().__init__()
        self.normaliser = Normaliser(obs_size)
        self.actor = _layers(obs_size, hidden, action_size)
        self.critic = _layers(obs_size, hidden, 1)
        self.log_std = nn.Parameter(torch.full((action_size,), log_std))
        generator = torch.Generator().manual_seed(seed)
        _initialise(self.actor, 0.01, generator)  # the first actions are noise around 0
        _initialise(self.critic, 1.0, generator)

    @torch.no_grad()
    def act(self, obs_NO: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sampled actions [N, A] and their log-probs [N]."""
        mean_NA = self.actor(self.normaliser(obs_NO))
        noise_NA = torch.randn(mean_NA.shape, generator=generator, device=mean_NA.device)
        return mean_NA + noise_NA * self.log_std.exp(), self._logprob(noise_NA)

    def judge(self, obs_RO: Tensor, action_RA: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of these actions [R] and the entropy [R], with slope."""
        mean_RA = self.actor(self.normaliser(obs_RO))
        logprob_R = self._logprob((action_RA - mean_RA) * (-self.log_std).exp())
        entropy = (self.log_std + 0.5 + HALF_LOG_TWO_PI).sum()
        return logprob_R, entropy.expand(len(obs_RO))

    def value(self, obs_RO: Tensor) -> Tensor:
        """What the critic expects of the rest of the episode, [R], in units of scaled rewards."""
        return self.critic(self.normaliser(obs_RO)).squeeze(-1)

    def _logprob(self, noise_RA: Tensor) -> Tensor:
        """Of actions that are so many standard deviations from their mean."""
        return (-0.5 * noise_RA**2 - self.log_std - HALF_LOG_TWO_PI).sum(-1)


def _layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )


def _initialise(layers: nn.Sequential, last_gain: float, generator: torch.Generator) -> None:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear:
        gain = last_gain if layer is linear[-1] else math.sqrt(2)
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        nn.init.zeros_(layer.bias)
