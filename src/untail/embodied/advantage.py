"""How good each action was, by PPO or by GRPO.

PPO, with V the critic and r scaled rewards, over the steps of one environment:
  delta_t = r_t + gamma V(next_t) - V(obs_t)       V(next_t) = 0 where the episode ended
  A_t = delta_t + gamma lam A_(t+1)                A_(t+1) = 0 where the episode is over
  R_t = A_t + V(obs_t)                             what the critic learns
GRPO: the return of an episode against those of its group, which began alike; the same for all of its steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from untail.embodied.config import LearnerConfig
from untail.embodied.experience import Experience
from untail.learn.advantage.base import standardised


@dataclass(frozen=True, slots=True)
class Lesson:
    """`target` is for the critic, and there is none where nobody asks it. Rows outside `counts` teach nothing."""

    advantage_TN: Tensor
    counts_TN: Tensor
    target_TN: Tensor | None = None


@torch.no_grad()
def ppo(experience: Experience, value: Callable[[Tensor], Tensor], config: LearnerConfig) -> Lesson:
    value_TN = value(experience.obs_TNO)
    next_TN = torch.where(experience.ended_TN, 0.0, value(experience.next_TNO))
    delta_TN = config.reward_scale * experience.reward_TN + config.gamma * next_TN - value_TN
    carry_TN = config.gamma * config.lam * ~experience.over_TN
    advantage_TN = torch.empty_like(delta_TN)
    after_N = torch.zeros_like(delta_TN[0])
    for t in range(len(delta_TN) - 1, -1, -1):
        after_N = delta_TN[t] + carry_TN[t] * after_N
        advantage_TN[t] = after_N
    return Lesson(advantage_TN, torch.ones_like(experience.over_TN), advantage_TN + value_TN)


def grpo(experience: Experience, group: int) -> Lesson:
    return_N, first_TN = experience.returns_of_first_episodes()
    groups = return_N.double().view(-1, group).tolist()
    advantage_N = torch.tensor([number for each in groups for number in standardised(each)]).to(return_N)
    return Lesson(advantage_N * first_TN, first_TN)
