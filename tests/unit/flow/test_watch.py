"""A plan follows what its roles really take."""

import pytest

from untail.errors import UserError
from untail.flow.cost import Point, Profiled
from untail.flow.graph import Edge, Graph, Node
from untail.flow.watch import STEPS, Watch
from untail.flow.work import Work


def watch(portions: list[int] | None = None) -> Watch:
    """A simulator that a second device makes no faster, and an update that is fast: side by side is no use."""
    graph = Graph([Node("act"), Node("update")], [Edge("act", "update", apart_s=1.0)])
    act = Profiled([Point(1, 8, 10.0), Point(1, 16, 20.0), Point(2, 8, 10.0), Point(2, 16, 10.0)])
    update = Profiled([Point(1, 8, 0.1), Point(1, 16, 0.2)])
    return Watch(Work(graph, {"act": act, "update": update}, 2, 16, portions=portions or []))


def test_small_and_single_deviations_change_nothing():
    kept = watch()
    for factor in (1.1, 0.9, 5.0, 1.0, 1.14, 1.0):
        assert kept.hear({"act": 10.0 * factor}) is None


def test_a_role_that_drifts_is_planned_anew():
    kept = watch()
    assert kept.plan.mode == "collocated"
    slow = 0.1 * 100
    plans = [kept.hear({"act": 10.0, "update": slow}) for _ in range(STEPS)]
    assert plans[:-1] == [None] * (STEPS - 1)
    assert plans[-1] is not None
    assert kept.plan is plans[-1]
    assert kept.plan.predicted_step_s > 10.0 + slow / 2
    for _ in range(2 * STEPS):  # what is measured now is what is predicted now
        leaf = {leaf.node: leaf for leaf in kept.plan.root.leaves}
        seconds = {name: kept.work.costs[name].seconds(leaf[name].devices, 16) for name in leaf}
        if kept.plan.granularity == 16:
            assert kept.hear(seconds) is None


def test_what_a_role_takes_in_portions_is_summed():
    kept = watch([4])
    predicted = dict(kept._predicted(kept.plan.root))
    for leaf in kept.plan.root.leaves:
        cost = kept.work.costs[leaf.node]
        assert predicted[leaf.node] == pytest.approx(cost.seconds(leaf.devices, leaf.items) * 16 / leaf.items)


def test_an_unknown_role_is_refused():
    with pytest.raises(UserError, match="no role of this flow; did you mean 'update'"):
        watch().hear({"updat": 1.0})
