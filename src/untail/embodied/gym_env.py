"""MuJoCo's HalfCheetah-v5 as gymnasium's vector environments, stepped one after the other on a core.

Invariant: what goes in and out are tensors in float32, and every environment draws from its own seed.
"""

import importlib.util
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from untail.embodied.simulator import Outcome
from untail.errors import UserError

NEEDED = ("gymnasium", "mujoco", "imageio")  # the last is what gymnasium's MuJoCo environments import


def refuse_missing_packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"--env halfcheetah needs {' and '.join(missing)}; install with: pip install 'untail[embodied]', "
            "or take --env cartpole"
        )


class HalfCheetah:
    obs_size: ClassVar[int] = 17
    action_size: ClassVar[int] = 6
    on_host: ClassVar[bool] = True

    def __init__(self, count: int, episode: int, device: torch.device):
        refuse_missing_packages()
        import gymnasium
        import mujoco
        from gymnasium.vector import AutoresetMode

        # gymnasium's model file uses a deprecated attribute: one warning per environment, on the terminal and in a file
        mujoco.set_mju_user_warning(lambda message: None)
        self._envs = gymnasium.make_vec(
            "HalfCheetah-v5",
            count,
            vectorization_mode="sync",
            max_episode_steps=episode,
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
            disable_env_checker=True,
        )
        mujoco.set_mju_user_warning(None)
        self._count, self._device = count, device

    def reset(self, seed: int, group: int) -> Tensor:
        seeds = [seed * self._count + number // group for number in range(self._count)]
        return self._tensor(self._envs.reset(seed=seeds)[0])

    def step(self, action_NA: Tensor) -> Outcome:
        action = action_NA.clamp(-1, 1).cpu().numpy()
        obs, reward, ended, cut, info = self._envs.step(action)
        final = obs
        over = ended | cut
        if over.any():
            final = obs.copy()
            final[over] = np.stack(info["final_obs"][over])
        ended_N = torch.from_numpy(ended).to(self._device)
        cut_N = torch.from_numpy(cut & ~ended).to(self._device)
        return Outcome(self._tensor(obs), self._tensor(reward), ended_N, cut_N, self._tensor(final))

    def close(self) -> None:
        self._envs.close()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self._device)
