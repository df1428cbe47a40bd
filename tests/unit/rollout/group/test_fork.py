"""5.4 alone: who is copied how often, and how hot."""

import pytest
from tests.helpers.rollout import FakeView
from tests.unit.rollout.group.helpers import at_boundary, build

from untail.errors import ConfigError

VIEW = FakeView()
TEXTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def parents(group, places: int, **fields) -> list[int]:
    copies = build("fork", **fields).copies(group, places, VIEW)
    return [int(copy.parent.id.rpartition("/")[2]) for copy in copies]


def test_the_best_the_top_or_all_in_turn():
    group = at_boundary(*TEXTS, logprob=[-3.0, -1.0, -2.0])
    assert parents(group, 4, parents="best") == [1, 1, 1, 1]
    assert parents(group, 4, parents="top") == [1, 2, 1, 2]
    assert parents(group, 4, parents="top", k=9) == parents(group, 4) == [1, 2, 0, 1]


def test_only_who_is_open_is_copied():
    group = at_boundary(*TEXTS, finished=2, logprob=[-3.0, -1.0, -2.0])
    group.members[1].trajectory.stopped = "loop"
    group.members[1].state = type(group.members[1].state).DONE
    assert set(parents(group, 5)) == {0, 2}


def test_ranks():
    group = at_boundary(*TEXTS, logprob=[-1.0, -2.0, -3.0], entropy=[0.1, 0.9, 0.5])
    first = lambda **fields: parents(group, 1, parents="best", **fields)
    assert first(rank="nll") == [0]
    assert first(rank="uncertainty") == [1]
    assert first(rank="template", marker_ids=(8, 9)) == [2]
    assert first(rank="template", marker_ids=(99,)) == [0]
    group.members[1].partial, group.members[2].partial = 0.2, 0.8
    assert first(rank="partial") == [2]
    assert [build("fork", rank=rank).wants_partial for rank in ("nll", "partial")] == [False, True]


def test_each_copy_of_a_member_is_hotter_up_to_a_bound():
    group = at_boundary(*TEXTS, logprob=[-3.0, -1.0, -2.0])
    heats = lambda **fields: [round(c.heat, 6) for c in build("fork", parents="best", **fields).copies(group, 4, VIEW)]
    assert heats() == [1.2, 1.4, 1.5, 1.5]
    assert heats(warmer=0.0) == [1.0] * 4
    assert heats(warmest=1.3) == [1.2, 1.3, 1.3, 1.3]
    group.members[2].trajectory.parent = group.members[1].id
    assert heats() == [1.4, 1.5, 1.5, 1.5], "it has a copy already"


def test_a_template_needs_a_marker():
    with pytest.raises(ConfigError, match=r"mechanisms.fork.rank = 'template' needs mechanisms.fork.marker_ids"):
        build("fork", rank="template").check(8, 512)
