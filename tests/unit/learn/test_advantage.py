"""Each advantage against its formula, and the groups that teach nothing."""

import pytest
from tests.unit.learn.helpers import group, plain_advantages

from untail.errors import ConfigError
from untail.learn.advantage import ADVANTAGES

NAMES = ["grpo", "dr_grpo", "rloo", "dapo"]


def compute(name: str, rewards: list[float]) -> list[float]:
    return ADVANTAGES.build({"name": name}, "learn.advantage", 512).compute(group("g", [3] * len(rewards), rewards, 50))


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


@pytest.mark.parametrize(("overlong", "longest"), [(0.2, 100), (0.5, 40), (1.0, 100), (0.0, 100)])
def test_the_overlong_penalty_of_dapo(overlong, longest):
    """Against the published three cases; a reply that an environment wrote is nobody's length."""
    lengths = [10, 80, 81, 90, 100]
    lengths = [min(length, longest) for length in lengths]
    rewards, cache = [1.0, 0.0, 1.0, 0.0, 1.0], overlong * longest
    penalised = []
    for length, reward in zip(lengths, rewards, strict=True):
        penalty = 0.0
        if cache and length > longest - cache:
            penalty = ((longest - cache) - length) / cache
        penalised.append(reward + penalty)
    table = {"name": "dapo", "overlong": overlong}
    ours = ADVANTAGES.build(table, "learn.advantage", longest).compute(group("g", lengths, rewards, 50))
    assert ours == pytest.approx(plain_advantages("grpo", penalised), abs=1e-12)


def test_length_of_an_overlong_response_is_what_the_model_wrote():
    dapo = ADVANTAGES.build({"name": "dapo"}, "learn.advantage", 100)
    assert dapo.compute(group("g", [81, 83], [0.0, 0.0], 50)) != [0.0, 0.0]
    assert dapo.compute(group("g", [81, 83], [0.0, 0.0], 50, reply_at=5)) == [0.0, 0.0]


def test_reinforce_has_a_constant_baseline():
    reinforce = ADVANTAGES.build({"name": "reinforce", "baseline": 0.25}, "learn.advantage", 512)
    assert reinforce.compute(group("g", [3, 3], [1.0, 1.0], 50)) == [0.75, 0.75]
    assert reinforce.compute(group("g", [3], [0.0], 50)) == [-0.25]


def test_names_and_keys_are_checked():
    with pytest.raises(ConfigError, match="unknown advantage 'grop'; did you mean 'grpo'"):
        ADVANTAGES.build({"name": "grop"}, "learn.advantage", 512)
    with pytest.raises(ConfigError, match=r"unknown key 'learn\.advantage\.std'"):
        ADVANTAGES.build({"name": "grpo", "std": 1}, "learn.advantage", 512)
