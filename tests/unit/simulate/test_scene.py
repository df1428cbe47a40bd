"""Scenes that contradict themselves are refused; the others say who has which devices."""

import pytest

from untail.config import RolloutConfig
from untail.errors import UserError
from untail.simulate.scene import Scene


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedule": "async"}, "who takes turns cannot overlap"),
        ({"learners": 2}, "the learner has all devices"),
        ({"mode": "disaggregated", "learners": 8}, "at least one device each"),
        ({"mode": "hybrid", "learners": 9}, "learners = 9 must be between 1 and devices = 8"),
        ({"mode": "disaggregated", "staleness": 2}, "rollout never runs ahead"),
    ],
)
def test_a_contradiction_is_refused(fields, said):
    with pytest.raises(UserError, match=said):
        Scene(8, "short", **fields)


def test_one_device_cannot_be_shared_out():
    with pytest.raises(UserError, match="learners = 1 of 1 devices"):
        Scene(1, "short", mode="disaggregated")


def test_who_has_which_devices():
    collocated, apart = Scene(8, "short"), Scene(8, "short", mode="disaggregated")
    hybrid = Scene(8, "short", mode="hybrid", learners=3)
    assert (collocated.engines, collocated.learner_devices) == (8, 8)
    assert (apart.engines, apart.learner_devices) == (6, 2)
    assert (hybrid.engines, hybrid.learner_devices) == (8, 3)


def test_an_update_takes_longer_on_fewer_devices():
    learn = {"update_s": 1.0, "learn_tok_s": 100.0}
    assert Scene(8, "short", **learn).update_seconds(8000) == pytest.approx(11.0)
    assert Scene(8, "short", mode="disaggregated", **learn).update_seconds(8000) == pytest.approx(41.0)
    assert Scene(8, "short").update_seconds(8000) == 0.0


def test_how_far_rollout_may_run_ahead():
    recipe = RolloutConfig(max_staleness=4)
    apart = {"mode": "disaggregated"}
    assert Scene(8, "short").lead(recipe) == 0
    assert Scene(8, "short", schedule="one-off", **apart).lead(recipe) == 1
    assert Scene(8, "short", schedule="one-off", staleness=0, **apart).lead(recipe) == 0
    assert Scene(8, "short", schedule="async", **apart).lead(recipe) == 4
    assert Scene(8, "short", schedule="async", staleness=2, **apart).lead(recipe) == 2
