"""At the end of a step the groups that are soonest whole run alone, with those that would grow too old."""

import math

from tests.helpers.rollout import FakeView, finish, make_group, make_prompt, whole, write

from untail.rollout.points import MECHANISMS

READY = [whole(make_prompt(n), [1.0] * 8) for n in range(10)]


def sprint(spare: int = 0):
    return MECHANISMS.build({"name": "sprint", "missing": 0.2, "spare": spare}, "mechanisms.sprint")


def nearly_whole(name: str, written: int):
    """Seven siblings ended after 100 tokens; the last one has so many."""
    group = make_group(name=name)
    for member in group.members[:-1]:
        finish(member, 100)
    write(group.members[-1], [1] * written)
    return group


def test_it_begins_when_little_is_missing():
    groups = [nearly_whole("a", 50), nearly_whole("b", 50), nearly_whole("c", 50)]
    assert sprint().waits_for(FakeView(wanted=10, ready=READY[:7], groups=groups)) is None
    assert sprint().waits_for(FakeView(wanted=10, ready=READY[:8], groups=groups)) == {"a", "b"}


def test_those_that_are_soonest_whole_run():
    groups = [nearly_whole("far", 10), nearly_whole("near", 95), make_group(name="new"), nearly_whole("middle", 50)]
    assert sprint().waits_for(FakeView(wanted=10, ready=READY[:8], groups=groups)) == {"near", "middle"}


def test_some_more_run_beside_them():
    groups = [nearly_whole(f"g{n}", 10 * n) for n in range(8)]
    assert sprint(spare=2).waits_for(FakeView(wanted=10, ready=READY[:9], groups=groups)) == {"g7", "g6", "g5"}


def test_what_is_overdue_runs_and_counts():
    groups = [nearly_whole("far", 10), nearly_whole("near", 95), nearly_whole("middle", 50)]
    view = FakeView(wanted=10, ready=READY[:8], groups=groups, late={"far"})
    assert sprint().waits_for(view) == {"far", "near"}
    view.ready = READY
    assert sprint().waits_for(view) == {"far"}


def test_what_will_soon_be_overdue_runs_beside_them():
    groups = [nearly_whole("far", 10), nearly_whole("near", 95), nearly_whole("middle", 50)]
    view = FakeView(wanted=10, ready=READY[:9], groups=groups, soon_late={"far"})
    assert sprint().waits_for(view) == {"near", "far"}
    view.ready = READY[:7]
    assert sprint().waits_for(view) is None


def test_there_is_no_sprint_where_all_will_soon_be_overdue():
    groups, chooser = [nearly_whole("far", 10), nearly_whole("near", 95), nearly_whole("middle", 50)], sprint()
    view = FakeView(wanted=10, ready=READY[:9], groups=groups, soon_late={"far", "middle"})
    assert chooser.waits_for(view) is None
    view.soon_late = {"far"}
    assert chooser.waits_for(view) is None, "decided for this step"
    view.step += 1
    assert chooser.waits_for(view) == {"near", "far"}


def test_what_will_soon_be_overdue_counts_in_what_pays():
    groups = [nearly_whole("far", 10), nearly_whole("near", 95), nearly_whole("middle", 50)]
    view = FakeView(wanted=10, ready=READY[:9], groups=groups, running=3, tau=1.0)
    assert sprint().waits_for(view) is None  # 1 alone against 3 now, and 0.6 is asked for
    view.soon_late = {"far"}
    assert sprint().waits_for(view) == {"near", "far"}


def test_whoever_was_chosen_stays_so_for_the_step():
    groups, chooser = [nearly_whole("a", 60), nearly_whole("b", 50)], sprint()
    view = FakeView(wanted=10, ready=READY[:9], groups=groups)
    assert chooser.waits_for(view) == {"a"}
    write(groups[1].members[-1], [1] * 45)
    assert chooser.waits_for(view) == {"a"}
    view.step = 2
    assert chooser.waits_for(view) == {"b"}


def test_when_one_is_gone_the_next_takes_its_place():
    groups, chooser = [nearly_whole("a", 60), nearly_whole("b", 50)], sprint()
    view = FakeView(wanted=10, ready=READY[:9], groups=groups)
    assert chooser.waits_for(view) == {"a"}
    view.groups = groups[1:]  # a was dropped
    assert chooser.waits_for(view) == {"b"}
    view.groups = []
    assert chooser.waits_for(view) is None


def test_nobody_makes_way_where_too_few_are_left_to_fill_the_batch():
    view = FakeView(wanted=10, ready=READY[:8], groups=[nearly_whole("a", 50)])
    assert sprint().waits_for(view) is None


def test_it_closes_nothing():
    assert sprint().closes_at(FakeView(wanted=10, ready=READY)) == math.inf


def test_nobody_makes_way_where_steps_are_hardly_shorter_with_few():
    groups = [nearly_whole("a", 60), nearly_whole("b", 50)]
    view = FakeView(wanted=10, ready=READY[:8], groups=groups, running=100, tau=1.0)
    view.tau_per_sequence = 0.01  # 2 / 1.02 alone against 100 / 2
    chooser = sprint()
    assert chooser.waits_for(view) is None
    view.tau_per_sequence = 1.0  # 2 / 3 against 100 / 101
    assert chooser.waits_for(view) is None, "decided for this step"
    view.step += 1
    assert chooser.waits_for(view) == {"a", "b"}


def test_a_sprint_that_has_begun_goes_on_with_fewer():
    groups, chooser = [nearly_whole("a", 60), nearly_whole("b", 50)], sprint()
    view = FakeView(wanted=10, ready=READY[:8], groups=groups)
    assert chooser.waits_for(view) == {"a", "b"}
    view.running, view.tau, view.tau_per_sequence = 100, 1.0, 0.0
    assert chooser.waits_for(view) == {"a", "b"}


def test_what_pays_is_told_by_what_each_engine_has():
    groups = [nearly_whole("a", 60), nearly_whole("b", 50)]
    view = FakeView(wanted=10, ready=READY[:8], groups=groups, running=100, tau=0.1, tau_per_sequence=1.0, engines=50)
    assert sprint().waits_for(view) is None  # 2 / 1.1 alone, and 100 / 2.1 now
    view.engines = 1  # 2 / 2.1, and 100 / 100.1
    assert sprint().waits_for(view) == {"a", "b"}
