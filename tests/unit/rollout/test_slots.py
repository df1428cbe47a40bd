"""Slots and lanes."""

import pytest
from tests.helpers.rollout import make_group, make_plan

from untail.rollout.live import Member, Route
from untail.rollout.slots import Slots

ANY = Route()


def members(count: int, route: Route = ANY) -> list[Member]:
    made = make_group(make_plan(size=count)).members
    for member in made:
        member.route = route
    return made


def test_the_lowest_free_slot_is_taken():
    slots = Slots(1, 3)
    a, b, c = members(3)
    for member in (a, b):
        slots.take(member, 0)
    assert (a.engine, a.slot, b.slot, slots.free) == (0, 0, 1, 1)
    slots.leave(a)
    assert (a.engine, a.slot, slots.free) == (0, None, 2)  # its KV may stay
    slots.take(c, 0)
    assert c.slot == 0


def test_engines_with_a_free_slot_come_emptiest_first():
    slots = Slots(3, 2)
    made = members(4)
    assert slots.free_engines() == [0, 1, 2]
    for member, engine in zip(made, (0, 0, 1), strict=False):
        slots.take(member, engine)
    assert slots.free_engines() == [2, 1]
    assert [slots.has_free(engine) for engine in range(3)] == [False, True, True]


@pytest.mark.parametrize(("share", "most"), [(1.0, 6), (0.5, 3), (0.4, 3), (0.01, 1)])
def test_a_lane_has_its_share_rounded_up(share, most):
    slots, route = Slots(2, 3), Route("slow", share)
    taken = 0
    for member in members(6, route):
        if slots.admits(route):
            slots.take(member, slots.free_engines()[0])
            taken += 1
    assert taken == most
    assert slots.admits(Route("other", 0.1))


def test_whoever_leaves_makes_room_in_its_lane():
    slots, route = Slots(1, 4), Route("slow", 0.25)
    (member,) = members(1, route)
    slots.take(member, 0)
    assert not slots.admits(route)
    member.route = Route("fast")  # it changes its lane in its slot; the slot still counts for the one it was taken in
    assert not slots.admits(route)
    slots.leave(member)
    assert slots.admits(route)
    assert slots.admits(Route("fast", 0.25))


def test_an_heir_has_the_slot_and_the_lane():
    slots, route = Slots(1, 4), Route("slow", 0.25)
    member, heir = members(2, route)
    slots.take(member, 0)
    slots.hand_over(member, heir)
    assert (member.engine, member.slot, heir.engine, heir.slot) == (None, None, 0, 0)
    assert (slots.free, slots.admits(route)) == (3, False)
    slots.leave(heir)
    assert (slots.free, slots.admits(route)) == (4, True)
