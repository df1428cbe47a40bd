"""6.2: how many groups are started, and when there are enough."""

import json
import math

import pytest
from tests.helpers.rig import Rig, lengths
from tests.helpers.rollout import FakeView, make_group, make_plan, make_prompt, whole
from tests.helpers.tiny import shapes

from untail.errors import ConfigError
from untail.rollout.finish.oversample import Oversample
from untail.rollout.points import MECHANISMS


def build(**fields) -> Oversample:
    return MECHANISMS.build({"name": "oversample", **fields}, "mechanisms.oversample")


def groups(count: int, budget: int = 8192, size: int = 8) -> list:
    return [make_group(make_plan(make_prompt(n), size, budget), name=f"g{n}") for n in range(count)]


def ready(count: int) -> list:
    return [whole(make_prompt(n), [1.0] * 8, name=f"r{n}") for n in range(count)]


@pytest.mark.parametrize(("rate", "started"), [(0.0, 8), (0.2, 10), (0.5, 16), (0.3, 12)])
def test_it_starts_n_over_one_minus_rate(rate, started):
    assert build(rate=rate).starts(FakeView(wanted=8)) == started


def test_what_is_under_way_or_ready_counts():
    view = FakeView(wanted=8, groups=groups(3), ready=ready(2))
    assert build(rate=0.2).starts(view) == 10 - 3 - 2


def test_with_deferral_a_round_is_made_of_what_is_open():
    """Three groups are under way with one open member of eight each: that is no whole group's worth."""
    mechanism = build(rate=0.2, rest="defer")
    assert mechanism.starts(FakeView(wanted=8, groups=groups(3), open=3)) == 10
    assert mechanism.starts(FakeView(wanted=8, groups=groups(3), open=17)) == 8


def test_dropping_closes_at_n_trajectories():
    view = FakeView(wanted=4, group=8, now=7.0, trained=31)
    assert build().rest == "close"
    assert build().closes_at(view) == math.inf
    view.trained = 32
    assert build().closes_at(view) == 7.0


def test_deferring_closes_at_n_groups():
    mechanism = build(rest="defer")
    assert mechanism.rest == "defer"
    assert mechanism.closes_at(FakeView(now=7.0, trained=99, ready=ready(3))) == math.inf
    assert mechanism.closes_at(FakeView(now=7.0, ready=ready(4))) == 7.0


@pytest.mark.parametrize(("step", "started"), [(1, 10), (10, 10), (15, 14), (20, 20), (99, 20)])
def test_the_rate_follows_a_schedule(step, started):
    """0.2 up to step 10, 0.6 from step 20 on, and 0.4 half-way."""
    mechanism = build(rate=0.9, schedule=[(10, 0.2), (20, 0.6)])
    assert mechanism.starts(FakeView(wanted=8, step=step)) == started


def test_the_rate_follows_the_curriculum():
    """Groups that may have a quarter of the longest response are as short as that: a quarter of the rate will do. A
    step is sized before it has groups: by those of the last one."""
    mechanism = build(rate=0.5, follow_curriculum=True)
    view = FakeView(wanted=8, step=1)
    assert mechanism.starts(view) == 16
    view.groups = groups(2, budget=2048)
    mechanism.closes_at(view)
    assert mechanism.starts(FakeView(wanted=8, step=2)) == math.ceil(8 / (1 - 0.125))
    view.groups = groups(1, budget=2048) + groups(1, budget=6144)
    mechanism.closes_at(view)
    assert mechanism.starts(FakeView(wanted=8, step=3)) == math.ceil(8 / (1 - 0.25))


def test_without_it_budgets_do_not_matter():
    assert build(rate=0.5).starts(FakeView(wanted=8, groups=groups(2, budget=2048))) == 16 - 2


def test_what_it_has_seen_survives_a_checkpoint():
    mechanism, fresh = build(rate=0.5, follow_curriculum=True), build(rate=0.5, follow_curriculum=True)
    mechanism.closes_at(FakeView(groups=groups(2, budget=2048)))
    fresh.restore(json.loads(json.dumps(mechanism.state())))
    assert fresh.starts(FakeView(wanted=8)) == mechanism.starts(FakeView(wanted=8)) == 10


def test_in_a_rollout_the_rate_follows_the_curriculum_from_the_second_step_on():
    tables = {"oversample": {"rate": 0.5, "follow_curriculum": True}}
    one, two = Rig(lengths(), tables, shapes(budget=20), prompts=4, pool=32).run(2)
    assert (len(one.groups("admit")), len(two.groups("admit"))) == (8, math.ceil(4 / (1 - 0.1)))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rate": 1.0}, r"mechanisms.oversample.rate = 1.0"),
        ({"rate": -0.1}, r"mechanisms.oversample.rate = -0.1"),
        ({"schedule": [(5, 1.0)]}, r"mechanisms.oversample.schedule.* = 1.0"),
        ({"schedule": [(9, 0.1), (5, 0.2)]}, r"steps \[9, 5\]; give each once, in rising order"),
        ({"schedule": [(5, 0.1), (5, 0.2)]}, r"steps \[5, 5\]; give each once, in rising order"),
        ({"rest": "cancel"}, r"mechanisms.oversample.rest"),
    ],
)
def test_what_cannot_be_is_refused(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(**fields)
