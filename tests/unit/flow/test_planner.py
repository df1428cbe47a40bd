"""The planner finds what a search of everything finds, and says why it did not take the rest."""

import math
from itertools import pairwise

import pytest
from tests.unit.flow.brute_force import fastest, random_work

from untail.errors import UserError
from untail.flow.cost import Curve, Point, Profiled, Rollout
from untail.flow.graph import Edge, Graph, Node
from untail.flow.plan import Plan, Step
from untail.flow.planner import make_plan
from untail.flow.search import Search
from untail.flow.work import Work


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_no_plan_of_a_brute_force_search_is_faster(first):
    for seed in range(first, first + 50):
        work = random_work(seed)
        expected = fastest(work)
        if math.isinf(expected):
            with pytest.raises(UserError):
                make_plan(work)
            continue
        plan = make_plan(work)
        assert plan.predicted_step_s == pytest.approx(expected, rel=1e-9), seed
        check(plan, work)


def check(plan: Plan, work: Work) -> None:
    """It is a plan for this graph: every node once, on devices that there are, and its seconds are those of its
    parts."""
    assert sorted(leaf.node for leaf in plan.root.leaves) == sorted(work.graph.nodes)
    for name, devices in plan.root.placement().items():
        assert set(devices) <= set(range(work.devices))
        assert bool(devices) != work.graph.nodes[name].on_host
    for other in plan.alternatives:
        assert other.seconds is None or other.seconds >= plan.predicted_step_s * (1 - 1e-9)
        assert other.why
    for step in parts_of(plan.root):
        first, second = step.parts
        assert step.items % step.portion == 0
        assert first.items == second.items
        if step.kind == "side by side":
            assert not set(devices_of(first, plan)) & set(devices_of(second, plan))
            assert step.seconds >= max(first.seconds, second.seconds) * (1 - 1e-9)
        elif not any(leaf.swapped for leaf in step.leaves):
            assert step.seconds == pytest.approx(step.rounds * (first.seconds + second.seconds))


def parts_of(step: Step) -> list[Step]:
    return ([step] if step.parts else []) + [found for part in step.parts for found in parts_of(part)]


def devices_of(step: Step, plan: Plan) -> list[int]:
    places = plan.root.placement()
    return [device for leaf in step.leaves for device in places[leaf.node or ""]]


def test_halves_that_do_not_wait_for_each_other_are_cut_once():
    graph = Graph([Node("a"), Node("b"), Node("c")], [Edge("a", "c"), Edge("b", "c")])
    search = Search(Work(graph, dict.fromkeys("abc", Profiled([Point(1, 1, 1.0)])), 2, 1))
    bit = {name: 1 << place for place, name in enumerate(search.names)}
    assert len(search.cuts(bit["a"] | bit["b"])) == 1
    assert len(search.cuts(search.whole)) == 3, "a before the rest, b before the rest, both before c"


def training(update_s: float = 1.0, devices: int = 8, slots: int = 64, **changes) -> Work:
    """Rollout and update of 32 groups; responses of one length or, with a tail, of many."""
    lengths = changes.pop("lengths", [100])
    tau = changes.pop("tau", Curve([(1, 0.01), (64, 0.02)]))
    gib = changes.pop("gib", 10.0)
    graph = Graph(
        [Node("rollout"), Node("update")],
        [Edge("rollout", "update"), Edge("update", "rollout", "weights", changes.pop("sync_s", 0.0), next_step=True)],
    )
    costs = {
        "rollout": Rollout(lengths, tau, 8, slots, 32, gib=gib, load_s=0.5),
        "update": Profiled([Point(1, 1, update_s, gib), Point(1, 32, 32 * update_s, gib)], 0.5),
    }
    return Work(graph, costs, devices, 32, **changes)


def test_work_that_scales_is_collocated():
    plan = make_plan(training(tau=Curve([(1, 0.01), (2, 0.02)])))
    assert plan.mode == "collocated"
    assert plan.granularity == 32
    assert {len(devices) for devices in plan.root.placement().values()} == {8}
    assert "disaggregated" in {other.mode for other in plan.alternatives}


def test_a_tail_that_does_not_scale_is_given_few_devices():
    """Eight devices roll out hardly faster than two: the rest is better off learning meanwhile."""
    plan = make_plan(training(lengths=[10] * 30 + [2000], tau=Curve([(1, 0.01), (64, 0.011)])))
    assert plan.mode == "disaggregated"
    assert plan.granularity < 32
    places = plan.root.placement()
    assert len(places["rollout"]) + len(places["update"]) <= 8
    assert not set(places["rollout"]) & set(places["update"])
    collocated = next(other for other in plan.alternatives if other.mode == "collocated")
    assert collocated.seconds is not None
    assert "slower: rollout takes" in collocated.why


def test_what_does_not_fit_together_is_loaded_for_its_turn_and_that_is_paid():
    fits, tight = make_plan(training(devices=1, memory_gib=20.0)), make_plan(training(devices=1, memory_gib=19.0))
    assert not any(leaf.swapped for leaf in fits.root.leaves)
    assert all(leaf.swapped for leaf in tight.root.leaves)
    assert tight.predicted_step_s == pytest.approx(fits.predicted_step_s + 1.0)


def test_what_fits_nowhere_is_refused_with_the_numbers():
    with pytest.raises(UserError, match=r"'rollout' needs 10 GiB a device even on all 8, and a device has 4"):
        make_plan(training(memory_gib=4.0))


def test_what_does_not_fit_is_an_alternative_that_cannot_be_run():
    plan = make_plan(training(devices=1))
    assert [other.seconds for other in plan.alternatives] == [None]
    assert "not enough for both" in plan.alternatives[0].why


def test_one_device_for_many_roles_is_planned_in_turn():
    names = ["a", "b", "c", "d", "e", "f"]
    graph = Graph([Node(name) for name in names], [Edge(*pair) for pair in pairwise(names)])
    plan = make_plan(Work(graph, dict.fromkeys(names, Profiled([Point(1, 1, 1.0)])), 1, 4))
    assert (plan.mode, plan.predicted_step_s) == ("collocated", 24.0)


def test_weights_that_must_travel_speak_against_two_sets():
    lengths = [10] * 30 + [2000]
    assert make_plan(training(lengths=lengths, tau=Curve([(1, 0.01), (64, 0.011)]), sync_s=60.0)).mode == "collocated"


def test_batches_that_overlap_take_as_long_as_the_slower_half():
    plan = make_plan(training(steady=True, lengths=[10] * 30 + [2000], tau=Curve([(1, 0.01), (64, 0.011)])))
    assert plan.mode == "disaggregated"
    assert plan.predicted_step_s == pytest.approx(max(part.seconds for part in plan.root.parts))


def test_a_role_on_the_host_takes_no_device_and_decides_no_mode():
    work = training(tau=Curve([(1, 0.01), (2, 0.02)]))
    nodes = [*work.graph.nodes.values(), Node("reward", on_host=True)]
    graph = Graph(nodes, [Edge("rollout", "reward"), Edge("reward", "update")])
    plan = make_plan(Work(graph, {**work.costs, "reward": Profiled([Point(0, 1, 0.01)])}, 8, 32))
    assert len(plan.root.placement()["reward"]) == 0
    assert plan.mode == "collocated"
    assert plan.granularity == 32


def test_a_loop_is_run_side_by_side_when_its_halves_keep_each_other_busy():
    """A simulator on its own devices steps one half of the environments while the policy decides about the other."""
    graph = Graph(
        [Node("env"), Node("policy"), Node("update")],
        [Edge("env", "policy"), Edge("policy", "env", rounds=50), Edge("policy", "update")],
    )
    costs = {
        "env": Profiled([Point(1, 4, 1.0), Point(1, 8, 1.0)]),  # it takes as long for few as for many
        "policy": Profiled([Point(1, 4, 0.5), Point(1, 8, 1.0)]),
        "update": Profiled([Point(1, 8, 1.0)]),
    }
    plan = make_plan(Work(graph, costs, 2, 8))
    loop = next(step for step in parts_of(plan.root) if step.rounds == 50)
    assert {leaf.node for leaf in loop.leaves} == {"env", "policy"}
    assert loop.seconds < 50 * (costs["env"].seconds(2, 8) + costs["policy"].seconds(2, 8)) + 1
    assert "50 rounds" in "\n".join(plan.root.lines())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices": 0}, "devices = 0 must be at least 1"),
        ({"portions": [5]}, "granularity 5 does not divide the batch of 32"),
    ],
)
def test_work_that_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        training(**changes)


def test_a_node_without_a_cost_is_refused():
    work = training()
    with pytest.raises(UserError, match="cost of the node 'update' is missing"):
        Work(work.graph, {"rollout": work.costs["rollout"]}, 8, 32)


def test_a_plan_goes_into_json_with_the_fields_of_the_command():
    found = make_plan(training()).as_json()
    fields = {"mode", "placement", "granularity", "predicted_step_s", "search_ms", "alternatives"}
    assert fields <= found.keys()
    assert found["placement"]["rollout"] == {"first": 0, "count": 8}
