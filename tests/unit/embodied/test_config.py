"""Every wrong combination is refused in one sentence."""

import itertools
from typing import get_args

import pytest
from tests.unit.embodied.small import small

from untail.embodied.config import PRESETS, Chance, preset
from untail.errors import UserError


@pytest.mark.parametrize(("env", "algo"), PRESETS)
def test_presets_are_valid(env, algo):
    config = preset(env, algo)
    assert (config.env, config.algo) == (env, algo)
    assert config.steps == config.envs * config.horizon


@pytest.mark.parametrize(
    ("algo", "changes", "says"),
    [
        ("ppo", {"envs": 9}, "multiple of 2"),
        ("grpo", {"envs": 10, "group": 4}, "multiple of 8"),
        ("grpo", {"group": 1}, "nothing to compare"),
        ("grpo", {"horizon": 5}, "horizon = 5 must be episode = 6"),
        ("ppo", {"group": 2}, "means nothing to ppo"),
        ("ppo", {"learn": {"minibatches": 25}}, "more than the 24 rows"),
        ("ppo", {"envs": 0}, "embodied.envs = 0"),
        ("ppo", {"learn": {"gama": 1}}, "did you mean 'gamma'"),
    ],
)
def test_what_cannot_be_run_is_refused(algo, changes, says):
    with pytest.raises(UserError, match=says):
        small(algo, **changes)


@pytest.mark.parametrize(("env", "algo", "says"), [("cheetah", "ppo", "halfcheetah"), ("cartpole", "pp0", "ppo")])
def test_unknown_names_list_the_known(env, algo, says):
    with pytest.raises(UserError, match=f"did you mean '{says}'"):
        preset(env, algo)


def test_streams_are_all_different():
    configs = [small(shards=4), small(shards=4, seed=1)]
    about = itertools.product(get_args(Chance), range(9), range(4))
    streams = [config.stream(*each) for each in about for config in configs]
    assert len(set(streams)) == len(streams) == 2 * 3 * 9 * 4
