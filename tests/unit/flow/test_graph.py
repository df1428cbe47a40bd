"""What a flow graph takes, and what it makes of loops."""

import pytest

from untail.errors import UserError
from untail.flow.graph import Edge, Graph, Node, Stage


def nodes(names: str) -> list[Node]:
    return [Node(name) for name in names.split()]


def edges(*pairs: str) -> list[Edge]:
    return [Edge(*pair.split(">")) for pair in pairs]


def test_stages_come_in_an_order_in_which_they_can_run():
    graph = Graph(nodes("update reward rollout logprob"), edges("rollout>reward", "reward>update", "logprob>update"))
    places = {stage.name: place for place, stage in enumerate(graph.stages)}
    assert places["rollout"] < places["reward"] < places["update"]
    assert places["logprob"] < places["update"]
    assert graph.follows("rollout", "reward")
    assert not graph.follows("reward", "rollout")


def test_new_weights_for_the_next_step_make_no_cycle():
    weights = Edge("update", "rollout", "weights", apart_s=0.5, next_step=True)
    graph = Graph(nodes("rollout update"), [*edges("rollout>update"), weights])
    assert [stage.name for stage in graph.stages] == ["rollout", "update"]
    assert not graph.follows("update", "rollout")


def test_a_loop_is_one_stage_whose_members_are_in_order():
    back = Edge("policy", "env", "actions", rounds=80)
    graph = Graph(nodes("update policy env"), [*edges("env>policy", "policy>update"), back])
    assert graph.stages == [Stage(("env", "policy"), 80), Stage(("update",))]
    assert graph.stages[0].name == "env+policy"


def test_what_lies_between_the_ends_of_a_loop_is_in_it():
    back = Edge("act", "env", rounds=3)
    graph = Graph(nodes("env see think act learn"), [*edges("env>see", "see>think", "think>act", "act>learn"), back])
    assert graph.stages[0] == Stage(("env", "see", "think", "act"), 3)


def test_a_node_may_be_its_own_loop():
    assert Graph(nodes("env"), [Edge("env", "env", rounds=5)]).stages == [Stage(("env",), 5)]


@pytest.mark.parametrize(
    ("names", "wrong", "said"),
    [
        ("", [], "has no nodes"),
        ("a a", [], "two nodes named 'a'"),
        ("rollout update", edges("rolout>update"), "'rolout', which is unknown; did you mean 'rollout'?"),
        ("a b", edges("a>b", "b>a"), "has a cycle"),
        ("a", edges("a>a"), "has a cycle: a -> a"),
        ("a b", [Edge("a", "b", rounds=3)], "closes no loop"),
        ("a b", [Edge("a", "b"), Edge("b", "a", rounds=0)], "rounds = 0"),
        ("a b", [Edge("a", "b"), Edge("b", "a", rounds=2, next_step=True)], "rounds and next_step"),
        ("a b", [Edge("a", "b", apart_s=-1.0)], "apart_s = -1.0"),
        ("a b c", [*edges("a>b", "b>c"), Edge("b", "a", rounds=2), Edge("c", "b", rounds=3)], "may not overlap"),
    ],
)
def test_a_graph_that_cannot_be_is_refused_in_one_sentence(names, wrong, said):
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        Graph(nodes(names), wrong)


def test_a_cycle_through_two_loops_is_a_cycle():
    forward = edges("a>b", "c>d", "b>d", "c>a")
    loops = [Edge("b", "a", rounds=2), Edge("d", "c", rounds=2)]
    with pytest.raises(UserError, match=r"may not overlap|has a cycle"):
        Graph(nodes("a b c d"), [*forward, *loops])
