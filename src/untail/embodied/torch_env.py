"""Cart-pole swing-up as one tensor program: thousands of carts on the device that the policy is on.

A pole hangs from a cart and must be swung up and kept there by pushing the cart. The force is 10 N times the action,
which counts from -1 to 1. A step is 0.05 s, five of semi-implicit Euler. Reward per step: (1 + cos angle) / 2, less a
little for the distance from the middle. An episode ends where the track ends, 3 m from the middle.

Invariant: the state is [4, N] (place, speed, angle, turn; angle 0 is upright) and never leaves the device.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from untail.embodied.simulator import Outcome

GRAVITY, CART, POLE, HALF_LENGTH, FORCE = 9.8, 1.0, 0.1, 0.5, 10.0  # m/s^2, kg, kg, m, N
TRACK = 3.0
SUBSTEPS, SECONDS = 5, 0.05


class CartPole:
    obs_size: ClassVar[int] = 5
    action_size: ClassVar[int] = 1
    on_host: ClassVar[bool] = False

    def __init__(self, count: int, episode: int, device: torch.device):
        self._count, self._episode, self._device = count, episode, device
        self._generator = torch.Generator(device)
        self._state_4N = torch.zeros(4, count, device=device)
        self._age_N = torch.zeros(count, dtype=torch.int32, device=device)

    def reset(self, seed: int, group: int) -> Tensor:
        self._generator.manual_seed(seed)
        self._state_4N = self._first_states(self._count // group).repeat_interleave(group, dim=1)
        self._age_N.zero_()
        return self._observe()

    def step(self, action_NA: Tensor) -> Outcome:
        force_N = FORCE * action_NA[:, 0].clamp(-1, 1)
        for _ in range(SUBSTEPS):
            self._advance(force_N, SECONDS / SUBSTEPS)
        self._age_N += 1
        place_N, angle_N = self._state_4N[0], self._state_4N[2]
        reward_N = 0.5 * (1 + angle_N.cos()) - 0.05 * (place_N / TRACK) ** 2
        ended_N = place_N.abs() > TRACK
        cut_N = (self._age_N >= self._episode) & ~ended_N
        final_NO = self._observe()
        over_N = ended_N | cut_N
        if over_N.any():
            self._state_4N = torch.where(over_N, self._first_states(self._count), self._state_4N)
            self._age_N.masked_fill_(over_N, 0)
        return Outcome(self._observe(), reward_N, ended_N, cut_N, final_NO)

    def close(self) -> None:
        pass

    def _advance(self, force_N: Tensor, seconds: float) -> None:
        """The equations of Barto, Sutton and Anderson (1983) with Florian's correction, without friction."""
        place_N, speed_N, angle_N, turn_N = self._state_4N
        sin_N, cos_N = angle_N.sin(), angle_N.cos()
        push_N = (force_N + POLE * HALF_LENGTH * turn_N**2 * sin_N) / (CART + POLE)
        inertia_N = HALF_LENGTH * (4 / 3 - POLE * cos_N**2 / (CART + POLE))
        turning_N = (GRAVITY * sin_N - cos_N * push_N) / inertia_N
        pulling_N = push_N - POLE * HALF_LENGTH * turning_N * cos_N / (CART + POLE)
        speed_N = speed_N + seconds * pulling_N
        turn_N = turn_N + seconds * turning_N
        self._state_4N = torch.stack([place_N + seconds * speed_N, speed_N, angle_N + seconds * turn_N, turn_N])

    def _observe(self) -> Tensor:
        place_N, speed_N, angle_N, turn_N = self._state_4N
        return torch.stack([place_N, speed_N, angle_N.cos(), angle_N.sin(), turn_N], dim=1)

    def _first_states(self, count: int) -> Tensor:
        """Near the middle, nearly at rest, hanging."""
        state_4N = 0.2 * torch.randn(4, count, generator=self._generator, device=self._device)
        state_4N[2] += math.pi
        return state_4N
