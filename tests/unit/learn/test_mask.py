"""Each mask against a plain loop over tokens."""

import math
from statistics import fmean

import numpy as np
import pytest
from tests.unit.learn.helpers import group

from untail.errors import ConfigError
from untail.learn.mask import MASKS
from untail.types import Segment, Trajectory

LENGTH, REPLY_AT = 24, 5
CUTS = [(0, 7), (7, 15), (15, LENGTH)]


def mask(name: str, **fields):
    return MASKS.build({"name": name, **fields}, f"learn.masks.{name}")


def response(seed: int = 0, reward: float = 1.0, entropy_scale: float = 0.3, cuts=CUTS) -> Trajectory:
    (made,) = group("g", [LENGTH], [reward], 50, reply_at=REPLY_AT).trajectories
    random = np.random.default_rng(seed)
    made.policy_logprob = [math.log(p) for p in random.choice([0.5, 0.9, 0.989, 0.99, 0.999, 1.0], LENGTH)]
    made.entropy = (entropy_scale * random.random(LENGTH)).tolist()
    made.segments = [Segment(begin, end, "boundary") for begin, end in cuts]
    return made


def model_mean(values, trajectory, begin=0, end=LENGTH) -> float:
    return fmean(values[t] for t in range(begin, end) if trajectory.from_model[t])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reward", [1.0, 0.9, -1.0, 1.5])
@pytest.mark.parametrize("entropy_scale", [0.1, 0.3, 0.9])
def test_mastered(seed, reward, entropy_scale):
    made = response(seed, reward, entropy_scale)
    applies = reward >= 1 and model_mean(made.entropy, made) < 0.2
    expected = [0.0 if applies and math.exp(logprob) >= 0.99 else 1.0 for logprob in made.policy_logprob]
    assert mask("mastered").keep(made).tolist() == expected
    assert (0.0 in expected) is applies, "otherwise the test says nothing"


def test_mastered_counts_the_entropy_of_the_model_alone():
    made = response(entropy_scale=0.1)
    for position in range(REPLY_AT, REPLY_AT + 3):
        made.entropy[position] = 100.0
    assert not mask("mastered").keep(made).all()
    made.entropy = [100.0 if ours else 0.0 for ours in made.from_model]
    assert mask("mastered").keep(made).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cuts", [CUTS, []], ids=["segments", "never cut"])
def test_low_entropy(seed, cuts):
    made = response(seed, entropy_scale=0.04, cuts=cuts)
    expected = [1.0] * LENGTH
    for begin, end in cuts or [(0, LENGTH)]:
        if model_mean(made.entropy, made, begin, end) < 0.02:
            expected[begin:end] = [0.0] * (end - begin)
    assert mask("low_entropy").keep(made).tolist() == expected


def test_low_entropy_takes_out_some_segments_and_leaves_others():
    made = response()
    made.entropy = [0.0] * 7 + [1.0] * (LENGTH - 7)
    assert mask("low_entropy").keep(made).tolist() == [0.0] * 7 + [1.0] * (LENGTH - 7)
    assert mask("low_entropy", entropy=2.0).keep(made).tolist() == [0.0] * LENGTH


@pytest.mark.parametrize(("stopped", "kept"), [(None, 1.0), ("loop", 1.0), ("tournament", 0.0), ("duplicate", 0.0)])
def test_pruned(stopped, kept):
    made = response()
    made.stopped = stopped
    assert mask("pruned").keep(made).tolist() == [kept] * LENGTH


def test_last_segment():
    assert mask("last_segment").keep(response()).tolist() == [0.0] * 15 + [1.0] * (LENGTH - 15)
    assert mask("last_segment").keep(response(cuts=[])).tolist() == [1.0] * LENGTH


@pytest.mark.parametrize("name", MASKS.names())
def test_a_response_without_tokens_is_no_trouble(name):
    (empty,) = group("g", [0], [1.0], 50).trajectories
    assert mask(name).keep(empty).tolist() == []


@pytest.mark.parametrize("name", MASKS.names())
def test_a_response_that_an_environment_wrote_alone_is_no_trouble(name):
    made = response()
    made.from_model = [False] * LENGTH
    assert not np.isnan(mask(name).keep(made)).any()


def test_names_and_fields_are_checked():
    with pytest.raises(ConfigError, match="unknown mask 'masterd'; did you mean 'mastered'"):
        mask("masterd")
    with pytest.raises(ConfigError, match=r"learn\.masks\.mastered\.p = 1\.5 is not valid"):
        mask("mastered", p=1.5)
