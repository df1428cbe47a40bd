"""What is too stale, what is trained next, and what is carried."""

import pytest
from tests.helpers.rollout import finish, make_group, make_plan, make_prompt, whole, write

from untail.rollout.live import LiveGroup, State, ghost_of
from untail.rollout.pool import Pool
from untail.types import Group


def live(name: str, *versions: int | None, prompt: int = 0) -> LiveGroup:
    """A group of members whose first tokens have these versions (None: no token)."""
    group = make_group(make_plan(make_prompt(prompt), len(versions)), name=name)
    for member, version in zip(group.members, versions, strict=True):
        if version is not None:
            write(member, [1, 2]).trajectory.version[:] = [version, version + 1]
    return group


def ready(name: str, version: int) -> Group:
    group = whole(make_prompt(), [1.0, 0.0], length=3, name=name)
    for trajectory in group.trajectories:
        trajectory.version[:] = [version] * 3
    return group


def pool_of(*groups: LiveGroup | Group, bound: int = 2) -> Pool:
    pool = Pool(bound)
    for group in groups:
        if isinstance(group, Group):
            pool.ready.append(group)
        else:
            pool.add(group)
    return pool


def names(groups: list[Group]) -> list[str]:
    return [group.id for group in groups]


def test_a_prompt_under_way_is_known_until_its_last_group_leaves():
    first, second, other = live("a", None), live("b", None), live("c", None, prompt=1)
    pool = pool_of(first, second, other)
    pool.remove(first)
    assert pool.asks(make_prompt(0).id)
    pool.remove(second)
    assert not pool.asks(make_prompt(0).id)
    assert pool.asks(make_prompt(1).id)


def test_overdue_is_what_the_next_update_could_not_train():
    """After the update of step 5 the weights have version 5: tokens of version 3 are two versions old, those of 2
    three."""
    pool = pool_of(live("a", 3, 4), live("b", 4, 2), live("c", None, None))
    assert pool.overdue(4) == set()
    assert pool.overdue(5) == {"b"}
    assert pool.overdue(6) == {"a", "b"}


def test_whoever_is_gone_makes_nothing_stale():
    group = live("a", 0, 4)
    group.members[0].state = State.GONE
    assert pool_of(group).overdue(5) == set()


def test_whoever_runs_has_tokens_even_if_nobody_has_seen_them():
    group, pool = live("a", None, None), Pool(0)
    pool.version = 4  # of the weights that the step began with
    pool.add(group)
    pool.version = 4
    assert pool.overdue(5) == set()
    group.members[1].state = State.RUNNING
    assert pool.overdue(5) == {"a"}
    pool.max_staleness = 1
    assert pool.overdue(5) == set()
    pool.version = 3  # the step began before the last update was over
    assert pool.overdue(5) == {"a"}


@pytest.mark.parametrize(
    ("wanted", "taken"), [(1, ["b"]), (2, ["b", "a"]), (9, ["b", "a", "c"]), (None, ["b", "a", "c"])]
)
def test_the_oldest_are_trained_first(wanted, taken):
    pool = pool_of(ready("c", 4), ready("b", 3), ready("a", 4))
    assert names(pool.take_batch(5, wanted)) == taken
    assert sorted(names(pool.ready)) == sorted({"a", "b", "c"} - set(taken))


def test_what_the_next_update_could_not_train_is_trained_now():
    pool = pool_of(ready("a", 4), ready("b", 2), ready("c", 1))
    assert names(pool.take_batch(5, 1)) == ["c", "b"]
    assert names(pool.ready) == ["a"]


def test_all_tokens_whose_fate_is_open_are_carried():
    group = live("a", 1, 1, None)
    gone = live("b", 1, 1)
    gone.members[0].state = State.GONE
    finish(group.members[2], 10)
    pool = pool_of(group, gone, ready("c", 1))
    assert pool.carried == 2 + 2 + 10 + 2 + 6
    ghost = ghost_of(group.members[0], "loop")
    write(ghost, [3, 4, 5])
    pool.ghosts[ghost.id] = ghost
    assert pool.carried == 2 + 2 + 10 + 2 + 6 + 3
    assert len(group.members[0].trajectory.tokens) == 2  # what it writes does not touch the one it was made from


@pytest.mark.parametrize("wanted", [None, 5])
def test_whoever_is_ready_is_certain_where_there_is_room_for_all(wanted):
    pool = pool_of(ready("g1", 3), ready("g2", 3), live("g3", 3, None), live("g4", None, None))
    pool.version = 3
    assert names(pool.certain(wanted)) == ["g1", "g2"]


def test_whoever_may_be_displaced_by_an_older_one_is_not_certain():
    """g1 is not, as long as g0 and the two of an older version may be whole before the step closes."""
    pool = pool_of(live("g0", None), ready("g1", 3), ready("g5", 2), live("g6", 2, 3), live("g9", 3))
    pool.version = 3
    assert names(pool.certain(4)) == ["g5", "g1"]
    assert names(pool.certain(3)) == ["g5"]
    assert names(pool.certain(1)) == ["g5"]
    pool.remove(pool.live["g6"])
    assert names(pool.certain(3)) == ["g5", "g1"]


def test_one_that_began_with_newer_weights_than_the_step_is_not_certain_while_others_may_begin():
    """Another engine may still have the older ones, and what begins there would go before it."""
    pool = pool_of(ready("g1", 4), ready("g2", 3))
    pool.version = 3
    assert names(pool.certain(5)) == ["g2"]
    assert names(pool.certain(None)) == ["g1", "g2"]


def test_of_one_under_way_tokens_may_be_older_than_those_that_are_known():
    """A member that runs has told nothing yet: it may have begun with the step's own weights."""
    pool = pool_of(live("g1", 4, None), ready("g2", 3))
    pool.version = 3
    assert names(pool.certain(1)) == []
