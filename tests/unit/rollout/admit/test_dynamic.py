"""Dynamic sampling: which groups are kept, and when a generation batch is followed by another."""

import math

import pytest
from tests.helpers.rollout import FakeView, make_group, make_prompt, whole

from untail.errors import ConfigError

from .helpers import build


def ready(count: int):
    return [whole(make_prompt(number), [0.0, 1.0]) for number in range(count)]


@pytest.mark.parametrize(
    ("rewards", "kept"), [([0, 0, 0], False), ([1, 1], False), ([0, 1], True), ([0.5, 0.5, -1], True), ([1], False)]
)
def test_a_group_is_kept_if_its_rewards_differ(rewards, kept):
    assert build("dynamic").keeps(whole(make_prompt(), [float(r) for r in rewards]), FakeView()) is kept


def test_what_is_masked_makes_no_difference():
    group = whole(make_prompt(), [0.0, 0.0, 1.0])
    group.trajectories[2].masked = True
    assert not build("dynamic").keeps(group, FakeView())


def test_each_batch_is_as_many_groups_as_are_wanted():
    dynamic = build("dynamic")
    assert dynamic.starts(FakeView(wanted=4, rounds=0)) == 4
    assert dynamic.starts(FakeView(wanted=4, rounds=1, ready=ready(3))) == 4
    assert dynamic.starts(FakeView(wanted=4, rounds=1, ready=ready(1), groups=[make_group()])) == 4


def test_enough_are_ready_from_the_last_step():
    view = FakeView(wanted=4, rounds=0, ready=ready(5))
    assert build("dynamic").starts(view) == 0
    assert build("dynamic").closes_at(view) == view.now


def test_it_waits_for_the_whole_batch():
    view = FakeView(wanted=2, now=9.0, ready=ready(2), groups=[make_group()])
    assert build("dynamic").closes_at(view) == math.inf
    view.groups = []
    assert build("dynamic").closes_at(view) == 9.0


def test_too_few_are_kept():
    view = FakeView(wanted=4, now=9.0, ready=ready(3), rounds=9)
    assert build("dynamic").closes_at(view) == math.inf
    view.rounds = 10
    assert build("dynamic").closes_at(view) == 9.0
    assert build("dynamic").starts(view) == 0
    view.rounds = 3
    assert build("dynamic", max_batches=3).closes_at(view) == 9.0


def test_surplus_is_left_for_the_next_step():
    assert build("dynamic").rest != "close"


def test_bad_config():
    with pytest.raises(ConfigError, match=r"mechanisms\.dynamic\.max_batches = 0"):
        build("dynamic", max_batches=0)
