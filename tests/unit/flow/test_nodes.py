"""A reward model, a reference model and retrieval are ordinary nodes of a flow graph: planned, placed and run like any
other, with channels between them."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.nodes import Item, ReferenceModel, Retrieval, RewardModel

from untail.flow.cluster import connect
from untail.flow.cost import Point, Profiled
from untail.flow.graph import Edge, Graph, Node
from untail.flow.planner import make_plan
from untail.flow.work import Work

PASSAGES = [
    "the pole hangs from a cart and is swung up",
    "a cheetah with two legs runs forward",
    "rain falls from clouds",
]
QUESTIONS = [
    "how does a cheetah run forward",
    "what hangs from a cart",
    "where does rain come from",
    "who swung the pole",
]
ANSWERS = [1, 0, 2, 0]
GRAPH = Graph(
    [Node("retrieval", on_host=True), Node("reward"), Node("reference")],
    [Edge("retrieval", "reward", "passages"), Edge("retrieval", "reference", "passages")],
)


def plan(devices: int, scales: bool = True):
    """Models that are faster on two devices, or not."""
    costs = {
        "retrieval": Profiled([Point(0, 4, 0.1)]),
        "reward": Profiled([Point(1, 4, 2.0), Point(2, 4, 1.0 if scales else 2.0)]),
        "reference": Profiled([Point(1, 4, 3.0), Point(2, 4, 1.5 if scales else 3.0)]),
    }
    return make_plan(Work(GRAPH, costs, devices, batch=4))


def here(items):
    """What the nodes would say, all in this process and all items at once."""
    found = Retrieval(PASSAGES).work(items)
    scored = RewardModel(3).work(found)
    return [
        replace(item, reward=other.reward) for item, other in zip(ReferenceModel(4).work(found), scored, strict=True)
    ]


def test_retrieval_finds_the_passage():
    found = Retrieval(PASSAGES).work([Item(number, question) for number, question in enumerate(QUESTIONS)])
    assert [item.passage for item in found] == [PASSAGES[answer] for answer in ANSWERS]


@pytest.mark.parametrize(
    ("devices", "scales", "expected"), [(1, True, [[0], [0]]), (2, True, [[0, 1], [0, 1]]), (2, False, [[0], [1]])]
)
def test_the_planner_places_them(devices, scales, expected):
    places = plan(devices, scales).root.placement()
    assert not places["retrieval"]  # on the host
    assert sorted([list(places["reward"]), list(places["reference"])]) == expected


def test_they_run_as_planned_and_say_what_they_would_say_here():
    items = [Item(number, question) for number, question in enumerate(QUESTIONS)]
    kinds = {"retrieval": (Retrieval, PASSAGES), "reward": (RewardModel, 3), "reference": (ReferenceModel, 4)}
    with connect("local") as cluster:
        places = plan(len(cluster.devices)).root.placement()
        groups = {
            name: cluster.group(cls, about, devices=[[device] for device in places[name]] or [[]], name=name)
            for name, (cls, about) in kinds.items()
        }
        results = asyncio.run(run(cluster, groups, items))
    for item, ours in zip(here(items), results, strict=True):
        assert (item.number, item.passage, item.tokens) == (ours.number, ours.passage, ours.tokens)
        assert ours.reward == pytest.approx(item.reward, abs=1e-5)
        np.testing.assert_allclose(ours.reference, item.reference, atol=1e-5)


async def run(cluster, groups, items):
    """Questions in, in portions of two; rewards and references out, put together by number."""
    questions, scored, referred = (cluster.channel(name) for name in ("questions", "scored", "referred"))
    to_score, to_refer = cluster.channel("to score"), cluster.channel("to refer")
    running = [
        groups["retrieval"].run(questions, [to_score, to_refer], 2),
        groups["reward"].run(to_score, [scored], 2),
        groups["reference"].run(to_refer, [referred], 2),
    ]
    for item in items:
        await questions.put(item)
    rewards = {item.number: item.reward for item in await scored.get_batch(len(items))}
    done = sorted(await referred.get_batch(len(items)), key=lambda item: item.number)
    for channel in (questions, to_score, to_refer):
        await channel.close()
    for handle in running:
        assert sum(await handle) == len(items)
    return [replace(item, reward=rewards[item.number]) for item in done]
