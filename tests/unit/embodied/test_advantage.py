"""PPO's advantages against the learner's own estimation and against sums written out; GRPO's within groups."""

import numpy as np
import pytest
import torch
from tests.unit.embodied.small import experience

from untail.embodied.advantage import grpo, ppo
from untail.embodied.config import LearnerConfig
from untail.learn.gae import gae

VALUES = {0: 0.3, 1: -0.2, 2: 0.9, 3: 0.5, 10: 0.1, 11: 0.7, 12: -0.4, 13: 0.2}
CONFIG = LearnerConfig(gamma=0.9, lam=0.8, reward_scale=0.5)


def value(obs):
    return torch.tensor([VALUES[int(x)] for x in obs.flatten()]).view(obs.shape[:-1])


@pytest.mark.parametrize("ends", ["ended", "cut", None])
def test_a_reward_at_the_end_is_what_the_language_learner_estimates(ends):
    over = [[False], [False], [True]]
    steps = experience([[0], [0], [2]], **({f"{ends}_TN": over} if ends else {}))
    bootstrap = 0.0 if ends == "ended" else VALUES[3]
    expected = gae(np.array([VALUES[t] for t in range(3)]), 1.0, bootstrap, 0.9, 0.8)
    lesson = ppo(steps, value, CONFIG)
    assert lesson.advantage_TN[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert (lesson.target_TN - lesson.advantage_TN)[:, 0].tolist() == pytest.approx([0.3, -0.2, 0.9], abs=1e-6)
    assert lesson.counts_TN.all()


def test_rewards_on_the_way_and_an_end_in_the_middle():
    steps = experience(
        [[1, 1], [2, 2], [3, 3]],
        ended_TN=[[False, False], [True, False], [False, False]],
        cut_TN=[[False, True], [False, False], [False, False]],
    )
    advantage = ppo(steps, value, CONFIG).advantage_TN.T.tolist()
    last = 1.5 + 0.9 * 0.5 - 0.9
    ended = 1.0 - (-0.2)
    assert advantage[0] == pytest.approx([0.5 + 0.9 * -0.2 - 0.3 + 0.72 * ended, ended, last], abs=1e-6)
    last = 1.5 + 0.9 * 0.2 - (-0.4)
    middle = 1.0 + 0.9 * -0.4 - 0.7 + 0.72 * last
    assert advantage[1] == pytest.approx([0.5 + 0.9 * 0.7 - 0.1, middle, last], abs=1e-6)  # cut: its rest is 0.7


def test_grpo_compares_within_groups_and_teaches_nothing_after_the_end():
    steps = experience([[1, 3, 5, 5], [1, 100, 5, 5]], ended_TN=[[False, True, False, False], [False] * 4])
    lesson = grpo(steps, group=2)
    assert lesson.target_TN is None
    first, second = 1 / np.sqrt(2), -1 / np.sqrt(2)
    assert lesson.advantage_TN[0].tolist() == pytest.approx([second, first, 0, 0], abs=1e-5)  # returns 2 and 3; equal
    assert lesson.advantage_TN[1].tolist() == pytest.approx([second, 0, 0, 0], abs=1e-5)
    assert lesson.counts_TN.tolist() == [[True] * 4, [True, False, True, True]]
