"""Each advantage against its formula, and the groups that teach nothing."""

import pytest
from tests.unit.learn.helpers import group, plain_advantages

from untail.errors import ConfigError
from untail.learn.advantage import ADVANTAGES

NAMES = ["grpo", "dr_grpo"]


def compute(name: str, rewards: list[float]) -> list[float]:
    return ADVANTAGES.build({"name": name}, "learn.advantage").compute(group("g", [3] * len(rewards), rewards, 50))


@pytest.mark.parametrize("rewards", [[0, 1], [0.1, 0.7, 0.7, -2.0, 5.5], [1, 0, 0, 0, 0, 0, 0, 0]])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_plain_formula(name, rewards):
    assert compute(name, rewards) == pytest.approx(plain_advantages(name, rewards), abs=1e-12)


def test_by_hand():
    assert compute("dr_grpo", [0.0, 1.0, 2.0]) == [-1.0, 0.0, 1.0]
    assert compute("grpo", [0.0, 1.0, 2.0]) == pytest.approx([-1 / (1 + 1e-6), 0.0, 1 / (1 + 1e-6)], abs=1e-15)


@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.7] * 10, [1.0], [0.0], [0.3]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_and_a_group_of_one_give_exactly_zero(name, rewards):
    """The mean of ten 0.7 is not 0.7 in floating point; the advantage is 0 all the same."""
    assert compute(name, rewards) == [0.0] * len(rewards)


def test_rewards_that_differ_by_rounding_do_not_become_one():
    assert max(map(abs, compute("grpo", [0.3, 0.1 + 0.2]))) < 1e-9


def test_names_and_keys_are_checked():
    with pytest.raises(ConfigError, match="unknown advantage 'grop'; did you mean 'grpo'"):
        ADVANTAGES.build({"name": "grop"}, "learn.advantage")
    with pytest.raises(ConfigError, match=r"unknown key 'learn\.advantage\.std'"):
        ADVANTAGES.build({"name": "grpo", "std": 1}, "learn.advantage")
