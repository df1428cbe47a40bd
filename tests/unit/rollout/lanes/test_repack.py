"""3.5 by hand: who is emptied into whom."""

import json

import pytest
from tests.helpers.rollout import FakeView, make_group, make_plan, make_prompt, write
from tests.unit.history.helpers import record

from untail.errors import ConfigError
from untail.rollout.lanes import repack  # noqa: F401  (registers)
from untail.rollout.live import State
from untail.rollout.points import MECHANISMS

HIGH = {str(engine): 10**9 for engine in range(9)}  # falling, whatever is in use now


def build(last=HIGH, **fields):
    """As after an asking in which the engines used `last`."""
    made = MECHANISMS.build({"name": "repack", **fields}, "mechanisms.repack")
    made.restore({"kv": last})
    return made


def view_of(*engines: list[int], budget: int = 8192) -> FakeView:
    """Members with so many tokens each (prompt and response), engine by engine. Where nothing is known of their length,
    64 tokens or half of what they have are still to come."""
    view = FakeView(budget=budget)
    for engine, sizes in enumerate(engines):
        prompt = make_prompt(engine, length=4)
        group = make_group(make_plan(prompt, len(sizes), budget), name=f"g{engine}")
        for member, size in zip(group.members, sizes, strict=True):
            write(member, [1] * (size - 4))
            member.engine, member.state = engine, State.RUNNING
        view.groups.append(group)
    return view


def moved(mechanism, view) -> dict[str, int]:
    return {move.member.id: move.engine for move in mechanism.moves(view)}


def test_the_smallest_goes_whole_to_the_largest_that_holds_both():
    view = view_of([100, 200], [500], [400])
    assert moved(build(last={"0": 301}), view) == {"g0/0": 1, "g0/1": 1}


def test_sources_go_by_ascending_kv():
    """1 comes first and takes the place on 2; 0 then fits on 3 only."""
    view = view_of([200], [100], [600], [300])
    assert moved(build(kv_tokens=700, last={"0": 201, "1": 101}), view) == {"g1/0": 2, "g0/0": 3}


def test_a_receiver_is_no_source_and_the_emptied_no_destination():
    """0 goes to 3, the largest; 1 too, as it still fits; 2 fits nowhere else than on 3, which has no place any more."""
    view = view_of([100], [200], [300], [600])
    assert moved(build(kv_tokens=900), view) == {"g0/0": 3, "g1/0": 3}
    view = view_of([100], [200])
    assert moved(build(), view) == {"g0/0": 1}  # and 1, a source too, stays


def test_the_projected_kv_stays_within_the_cap():
    view = view_of([100], [500], [400])
    assert moved(build(kv_tokens=600, last={"0": 101}), view) == {"g0/0": 1}
    assert moved(build(kv_tokens=599, last={"0": 101}), view) == {"g0/0": 2}
    assert moved(build(kv_tokens=499, last={"0": 101}), view) == {}


def test_a_destination_stays_within_the_roofline():
    view = view_of([100, 100], [300, 300], [400])
    assert moved(build(roofline=4, last={"0": 201}), view) == {"g0/0": 1, "g0/1": 1}
    assert moved(build(roofline=3, last={"0": 201}), view) == {"g0/0": 2, "g0/1": 2}
    # Not even one of two goes where there is room for one: a source is emptied whole or not at all.
    assert moved(build(roofline=3, last={"0": 201}), view_of([100, 100], [300, 300])) == {}


def test_a_source_has_fewer_than_the_roofline_batch():
    view = view_of([100, 100], [500])
    assert moved(build(roofline=3, last={"0": 201}), view) == {"g0/0": 1, "g0/1": 1}
    assert moved(build(roofline=2, last={"0": 201}), view) == {}


def test_a_source_is_falling():
    view = view_of([100], [500])
    assert moved(build(last={"0": 101}), view) == {"g0/0": 1}
    assert moved(build(last={"0": 100}), view) == {}
    assert moved(build(last={}), view) == {}  # nobody has asked before


def test_falling_is_against_the_last_asking():
    mechanism = build(last={})
    assert moved(mechanism, view_of([100, 100], [500])) == {}
    assert moved(mechanism, view_of([150], [500])) == {"g0/0": 1}
    assert json.loads(json.dumps(mechanism.state())) == {"kv": {"0": 150, "1": 500}}


def test_what_is_about_to_end_is_not_moved():
    """A predicted length of 200: with 136 tokens 64 are to come, with 137 only 63."""
    view = view_of([140, 140], [500])
    view.history.add([record(200, make_prompt(0).id)])
    assert len(moved(build(last={"0": 281}), view)) == 2
    view = view_of([140, 141], [500])
    view.history.add([record(200, make_prompt(0).id)])
    assert moved(build(last={"0": 282}), view) == {}
    assert len(moved(build(last={"0": 282}, min_gain=63.5), view)) == 2


def test_nothing_remains_beyond_the_budget():
    view = view_of([8192 + 4 - 63], [500])
    assert moved(build(last={"0": 10**9}), view) == {}
    view = view_of([8192 + 4 - 64], [500])
    assert moved(build(last={"0": 10**9}), view) == {"g0/0": 1}


def test_only_what_runs_counts():
    view = view_of([100, 100], [500])
    view.groups[0].members[0].state = State.WAITING
    assert moved(build(last={"0": 101}), view) == {"g0/1": 1}
    view = view_of([100], [500])
    view.groups[1].members[0].state = State.DONE
    assert moved(build(), view) == {}  # an engine that runs nothing is better left free


def test_bounds_by_default():
    view = view_of([250] * 32, [250] * 32)
    assert len(moved(build(last={"0": 8001}), view)) == 32
    assert moved(build(last={"0": 8001}), view_of([250] * 32, [250] * 33)) == {}
    assert len(moved(build(last={"0": 101}), view_of([100], [499_900], budget=600_000))) == 1
    assert moved(build(last={"0": 101}), view_of([100], [499_901], budget=600_000)) == {}


def test_every_is_a_field():
    assert build().every == 5.0
    assert build(every=2).every == 2.0


@pytest.mark.parametrize(("field", "value"), [("every", 0), ("kv_tokens", 0), ("roofline", 0), ("min_gain", -1)])
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.repack\.{field} = "):
        build(**{field: value})
