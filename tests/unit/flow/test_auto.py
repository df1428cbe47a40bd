"""Roles placed by a plan: where it puts them, when they move, and when a move is not worth it."""

from dataclasses import replace

import pytest
from tests.helpers.flowing import small

from untail.config import ConfigError
from untail.flow.auto import MOVE_S, Auto
from untail.flow.cost import Point, Profiled, RankedCost, Scaled
from untail.flow.graph import Edge, Graph, Node
from untail.flow.lending import TOLL
from untail.flow.placement import Placement, refuse_what_cannot_be
from untail.flow.profile import ExchangeProfile, Measured, Profile, RoleProfile, RolloutProfile, training_work
from untail.flow.work import Work


def auto_of(rollout_s, update_s, devices=2, batch=4, schedule="sync", apart_s=0.0):
    """A step of `batch` groups on one device takes so much; the rollout spreads over devices, the update does not."""
    graph = Graph(
        [Node("rollout"), Node("update")],
        [Edge("rollout", "update", "groups"), Edge("update", "rollout", "weights", apart_s=apart_s, next_step=True)],
    )
    costs = {
        "rollout": Profiled([Point(1, batch, rollout_s)]),
        "update": RankedCost(Profiled([Point(1, batch, update_s)]), measured=1),
    }
    return Auto(Work(graph, costs, devices, batch, steady=schedule != "sync"), schedule)


def row(rollout_s, update_s):
    return {"rollout_s": rollout_s, "learn": {"update_s": update_s / 2, "logprob_s": update_s / 2}}


def test_in_turn_engines_sit_on_all_devices_and_share_the_learners():
    auto = auto_of(rollout_s=10.0, update_s=0.5, devices=3, batch=6, apart_s=60.0)
    assert auto.plan.mode == "collocated"
    assert auto.place([5, 6, 7]) == Placement([], [5, 6, 7], [5])


def test_side_by_side_the_learner_has_a_device_of_its_own():
    auto = auto_of(rollout_s=10.0, update_s=9.0, devices=3, schedule="async")
    assert auto.plan.mode == "disaggregated"
    placed = auto.place([5, 6, 7])
    assert (placed.shared, len(placed.learner)) == ([], 1)
    assert not set(placed.alone) & set(placed.learner)


def profiled(update_s=10.0, swap_s=0.0, exchange=None, sync_s=0.0, memory_gib=None):
    """64 responses: a device writes one after the other, in 2.5 s each. Engine and learner need 4 GiB."""
    update = Measured(devices=1, responses=64, seconds=update_s, memory_gib=4.0)
    return Profile(
        made_on="here",
        model="tiny",
        memory_gib=memory_gib,
        sync_s=sync_s,
        rollout=RolloutProfile(tau=[(1, 0.25)], lengths=[10], memory_gib=4.0, swap_s=swap_s),
        roles={"update": RoleProfile(points=[update], swap_s=swap_s)},
        exchange=exchange,
    )


def auto_for(profile, devices=4, schedule="async"):
    recipe = small("grpo", flow__mode="auto", flow__schedule=schedule, rollout__prompts=16, engine__max_seqs=1)
    return Auto(training_work(profile, recipe, devices, schedule != "sync"), schedule)


@pytest.mark.parametrize(
    ("changes", "schedule", "mode", "placed", "seconds"),
    [
        # Nothing overlaps: all devices sample, and one of them learns.
        ({}, "sync", "collocated", Placement([], [0, 1, 2, 3], [0]), 40 + 10),
        # To load both for their turns costs more than a device less. Of eight portions the last is learned at the end.
        ({"swap_s": 20.0, "memory_gib": 6.0}, "sync", "disaggregated", Placement([0, 1, 2], [], [3]), 55 + 10 / 8),
        # While one device learns, the others write 12; then all write the rest, four at a time. Lending has its toll.
        ({}, "async", "hybrid", Placement([0, 1, 2], [3], [3]), (10 + 13 * 2.5) * (1 + TOLL)),
        # It would hardly sample, and has to be made ready for it each time.
        ({"update_s": 55.0, "swap_s": 5.0}, "async", "disaggregated", Placement([0, 1, 2], [], [3]), 55),
        # Weights take long to get to engines that have devices of their own.
        ({"sync_s": 60.0}, "async", "collocated", Placement([], [0, 1, 2, 3], [0]), 50),
    ],
)
def test_the_mode_that_is_fastest_is_chosen(changes, schedule, mode, placed, seconds):
    auto = auto_for(profiled(**changes), schedule=schedule)
    assert auto.plan.mode == mode
    assert auto.place([0, 1, 2, 3]) == placed
    assert auto.plan.predicted_step_s == pytest.approx(seconds)
    assert {auto.plan.mode, *(other.mode for other in auto.plan.alternatives)} >= {"collocated", "disaggregated"}


@pytest.mark.parametrize(("gib_s", "learners", "seconds"), [(100.0, 4, 40 + 20 / 4), (0.1, 1, 40 + 20), (None, 1, 60)])
def test_the_learner_gets_as_many_devices_as_pay(gib_s, learners, seconds):
    """A pass for all: they exchange 2 GiB in it. Where that is not known, the learner is as it was measured."""
    exchange = None if gib_s is None else ExchangeProfile(gib=2.0, responses=64, gib_s=gib_s)
    auto = auto_for(profiled(update_s=20.0, exchange=exchange, sync_s=60.0), schedule="sync")  # all in turn
    assert auto.place([5, 6, 7, 8]) == Placement([], [5, 6, 7, 8], [5, 6, 7, 8][:learners])
    sent = 2.0 * 3 / 4 / 100 if learners > 1 else 0.0
    assert auto.plan.predicted_step_s == pytest.approx(seconds + sent)


def test_several_learners_lend_their_devices():
    """Two learn in 60 s what takes one 100; meanwhile the others write 48 of 64, and all write the rest."""
    exchange = ExchangeProfile(gib=20.0, responses=64, gib_s=1.0)
    auto = auto_for(profiled(update_s=100.0, exchange=exchange))
    assert auto.plan.mode == "hybrid"
    assert auto.place([5, 6, 7, 8]) == Placement([5, 6], [7, 8], [7, 8])
    assert auto.plan.predicted_step_s == pytest.approx((60 + 4 * 2.5) * (1 + TOLL))


def hear(auto, rollout_s, update_s, steps_left, steps=3):
    return [auto.hear(row(rollout_s, update_s), steps_left) for _ in range(steps)]


def test_roles_move_when_they_take_something_else_and_the_steps_left_pay_for_it():
    """Side by side an update hides behind the rollout; once it takes next to nothing, a device for it is a waste."""
    auto = auto_of(rollout_s=10.0, update_s=9.0, schedule="async")
    assert auto.plan.mode == "disaggregated"
    assert hear(auto, 0.0, 0.1, steps_left=1000) == [False, False, True]
    assert auto.plan.mode == "collocated"
    assert auto.place([0, 1]).shared == [0, 1]
    assert hear(auto, 0.0, 0.1, steps_left=1000) == [False, False, False], "it is as planned now"


def test_the_portion_is_the_plans_and_changes_with_what_the_roles_take():
    """A portion costs the learner something of its own: once it is the learner that is waited for, larger ones are
    better. Where the roles sit is the same for both."""
    alone = {"rollout": [Point(1, 4, 10.0)], "update": [Point(1, 1, 1.3), Point(1, 4, 4.0)]}
    costs = {name: RankedCost(Profiled(points), measured=1) for name, points in alone.items()}
    auto = Auto(replace(auto_of(10.0, 4.0)._watch.work, costs=costs))
    assert (auto.plan.mode, auto.portion) == ("disaggregated", 1)
    placed = auto.place([0, 1])
    assert hear(auto, 10.0, 6 * 4 * 1.3, steps_left=1000) == [False, False, False], "nobody has to move for it"
    assert (auto.plan.mode, auto.portion) == ("disaggregated", 2)
    assert auto.place([0, 1]) == placed


def test_a_few_steps_do_not_pay_for_a_move():
    auto = auto_of(rollout_s=10.0, update_s=9.0, schedule="async")
    assert MOVE_S > 5.0
    assert hear(auto, 0.0, 0.1, steps_left=1) == [False] * 3
    assert auto.plan.mode == "disaggregated", "the plan in force is where the roles sit"
    assert hear(auto, 0.0, 0.1, steps_left=1) == [False] * 3


def test_what_is_as_planned_stays():
    auto = auto_of(rollout_s=10.0, update_s=9.0)
    took = auto.plan.root
    leaves = {leaf.node: leaf.seconds * (took.items // leaf.items) for leaf in took.leaves}
    assert hear(auto, leaves["rollout"], leaves["update"], steps_left=1000, steps=6) == [False] * 6


def test_a_step_that_taught_nothing_says_nothing_of_the_update():
    auto = auto_of(rollout_s=10.0, update_s=9.0, schedule="async")
    assert [auto.hear({"rollout_s": 1.0, "learn": {}}, 1000) for _ in range(5)] == [False] * 5


def test_drift_scales_what_was_measured():
    assert Scaled(RankedCost(Profiled([Point(1, 8, 4.0)]), 1), 0.5).seconds(4, 8) == 2.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"flow__profile": "p.json"}, 'is for flow.mode = "auto"'),
        ({"flow__mode": "auto", "deterministic": True}, "the mode that untail plan names"),
        ({"flow__mode": "auto", "flow__learner_devices": 2}, "learner_devices = 2, but with .* gives the learner its"),
    ],
)
def test_what_contradicts_itself_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        refuse_what_cannot_be(small("grpo", **changes))
