"""What the planner makes of measurements, and the layout that runs it."""

import pytest
from tests.unit.embodied.small import small

from untail.embodied.measure import Measured
from untail.embodied.planning import layout_of, make_work, mode_of
from untail.flow.planner import make_plan

HOP = 1e-5
CONFIG = small(envs=32, shards=2, horizon=10)


def plan(*measured: Measured, devices: int = 2, config=CONFIG):
    return make_plan(make_work(config, measured, devices))


def test_where_all_scale_everybody_takes_turns_on_all_devices():
    made = plan(Measured(1, 0.010, 0.002, HOP, 0.4), Measured(2, 0.010, 0.002, HOP, 0.2))
    assert mode_of(made) == "collocated"
    assert made.predicted_step_s == pytest.approx(10 * (0.010 + 0.002) + 0.2)
    layout = layout_of(CONFIG, made)
    assert (len(layout.env), len(layout.policy), len(layout.learn)) == (2, 2, 2)


def test_a_learner_that_two_devices_make_slower_gets_one():
    made = plan(Measured(1, 0.010, 0.002, HOP, 0.2), Measured(2, 0.010, 0.002, HOP, 0.3))
    assert made.predicted_step_s == pytest.approx(10 * (0.010 + 0.002) + 0.2)
    assert layout_of(CONFIG, made).learn == [[0]]
    assert layout_of(CONFIG, made).mode == "collocated"


def test_environments_that_get_in_each_others_way_step_on_one_device_beside_the_policy():
    """Two at once take three times as long, as where they share a memory bus."""
    made = plan(Measured(1, 0.010, 0.008, HOP, 0.4), Measured(2, 0.030, 0.020, HOP, 0.2))
    assert mode_of(made) == "hybrid"
    # One shard is acted for while the other steps; the first and the last wait.
    assert made.predicted_step_s == pytest.approx(20 * 0.010 + 0.008 + 0.2 + 40 * HOP, rel=0.01)
    layout = layout_of(CONFIG, made)
    assert (layout.env, layout.policy, layout.learn) == ([[0]], [[1]], [[0], [1]])


def test_messages_that_take_long_bring_them_together():
    slow = 0.02
    made = plan(Measured(1, 0.010, 0.008, slow, 0.4), Measured(2, 0.030, 0.020, slow, 0.2))
    assert mode_of(made) == "collocated"


def test_one_device_leaves_no_choice():
    made = plan(Measured(1, 0.010, 0.002, HOP, 0.4), devices=1)
    assert mode_of(made) == "collocated"
    assert made.predicted_step_s == pytest.approx(10 * 2 * (0.010 + 0.002) + 0.4)  # two shards, one after the other


def test_on_the_host_environments_step_beside_the_policy(monkeypatch):
    monkeypatch.setattr("untail.embodied.planning.on_host", lambda config: True)
    made = plan(Measured(1, 0.010, 0.008, HOP, 0.4), devices=1)
    assert mode_of(made) == "disaggregated"
    layout = layout_of(CONFIG, made)
    assert (layout.env, layout.policy, layout.learn) == ([[], []], [[0]], [[0]])


def test_the_learner_does_not_begin_with_half_a_batch():
    work = make_work(CONFIG, [Measured(1, 0.01, 0.002, HOP, 0.4)], 1)
    assert work.costs["learn"].seconds(1, 16) == work.costs["learn"].seconds(1, 32) == 0.4
