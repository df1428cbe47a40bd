"""3.6: the step closes when the pool holds a batch, and a round has a batch's worth of trajectories."""

import math

from tests.helpers.rollout import FakeView, make_group, make_prompt, whole

from untail.rollout.points import MECHANISMS

DEFER = MECHANISMS.build({"name": "defer"}, "mechanisms.defer")


def test_it_closes_at_a_batch_of_groups():
    ready = [whole(make_prompt(n), [1.0] * 8) for n in range(4)]
    assert DEFER.closes_at(FakeView(wanted=4, now=3.0, ready=ready[:3])) == math.inf
    assert DEFER.closes_at(FakeView(wanted=4, now=3.0, ready=ready)) == 3.0
    assert DEFER.rest == "defer"


def test_new_groups_fill_up_what_is_open_not_what_is_under_way():
    """Four groups wait for one member each: a batch that waited for them would leave the slots empty."""
    groups = [make_group(name=f"g{n}") for n in range(4)]
    assert DEFER.starts(FakeView(wanted=4, group=8, groups=groups, open=4)) == 4
    assert DEFER.starts(FakeView(wanted=4, group=8, groups=groups, open=15)) == 3
    assert DEFER.starts(FakeView(wanted=4, group=8, groups=groups, open=32)) == 0
