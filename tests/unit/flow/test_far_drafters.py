"""Drafters that learn, where engines and learner are apart. The processes are threads here; tests/e2e/test_flow.py has
the same with real ones."""

import asyncio
from unittest.mock import patch

import pytest
import torch
from tests.helpers.flowing import check_books, engine_is_there, small, train
from tests.helpers.here_cluster import HereCluster
from tests.unit.draft.adaptive.helpers import toy_target

from untail.backends.base import EngineLost
from untail.backends.seat import Turn
from untail.config import FlowConfig
from untail.draft.adaptive import spot
from untail.flow import far_drafters
from untail.flow.beside_learner import BesideLearner
from untail.flow.engine_worker import About, FarSeat
from untail.flow.failures import WorkerLost
from untail.flow.far_drafters import FarDrafters
from untail.flow.placement import place

ADAPTIVE = "draft__drafters__adaptive"
STEADY = {f"{ADAPTIVE}__slices": 3, f"{ADAPTIVE}__idle_below": 0}  # what is learned depends on the data alone
WHEN_IDLE = {f"{ADAPTIVE}__idle_below": 0.5}


class Seen:
    """A run, and its workers."""

    def __init__(self, folder, devices=2, interfere=None, **changes):
        recipe = small(flow__devices=devices, **changes)
        self.clusters = []
        with patch("untail.flow.choose.make_cluster", self._make):
            self.outcome = train(recipe, folder, interfere and (lambda roles, step: interfere(self, roles, step)))
        check_books(self.outcome)

    def _make(self, backend, address, devices, lease_s):
        self.clusters.append(HereCluster(devices))
        return self.clusters[-1]

    def worker(self, group, rank=0):
        return self.clusters[-1].groups[group].worker(rank)

    def trained(self):
        return self.worker("learner").beside.training.trainers["adaptive"].spot.weights()

    def serving(self, rank=0, group="engine"):
        guesser = self.worker(group, rank).speculator.drafters["adaptive"].guesser
        assert guesser.has_learned
        return guesser.model.state_dict()

    def learned(self, figure):
        return [row["learn"][f"adaptive_{figure}"] for row in self.outcome.metrics]

    def steady_slices(self):
        """Three after each update, from the first on that anything was learned from."""
        taught = [loss is not None for loss in self.outcome.losses]
        slices = [3 * (number - taught.index(True) + 1) for number in range(len(taught))]
        assert slices[1] > 0, "the first batches teach nothing: of no use to this test"
        return [max(0, count) for count in slices]


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("mode", ["disaggregated", "collocated", "hybrid"])
def test_engines_draft_with_what_was_trained_beside_the_learner(mode, tmp_path):
    seen = Seen(tmp_path / "run", flow__mode=mode, **STEADY)
    assert seen.learned("slices") == seen.steady_slices()
    for group in {"engine", "shared"} & seen.clusters[-1].groups.keys():
        for rank in range(len(seen.clusters[-1].groups[group].places)):
            assert same(seen.trained(), seen.serving(rank, group))
    assert seen.outcome.metrics[-1]["drafts"]["adaptive"]["drafted"] > 0
    assert (tmp_path / "run" / "drafter" / "model.safetensors").exists()


def test_it_learns_while_the_learner_waits_and_engines_hear_of_it_before_the_next_update(tmp_path, monkeypatch):
    monkeypatch.setattr(far_drafters, "EVERY_S", 0.02)
    monkeypatch.setattr(spot, "PUBLISH_EVERY", 2)
    heard = []

    async def interfere(seen, roles, step):
        if step == 3:
            await until(lambda: seen.worker("engine").speculator.drafters["adaptive"].guesser.has_learned)
            heard.append(step)

    seen = Seen(tmp_path / "run", interfere=interfere, flow__mode="disaggregated", **WHEN_IDLE)
    assert heard
    assert seen.learned("slices")[2] >= 2


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_engine_that_is_revived_gets_what_the_others_have(tmp_path):
    compared = []

    async def interfere(seen, roles, step):
        if step == 3:
            before = seen.worker("engine", 0)
            roles.workers[0].kill()
            await roles._mend()
            await engine_is_there(roles, 0)
            assert seen.worker("engine", 0) is not before
            compared.append(same(seen.serving(0), seen.serving(1)))

    Seen(tmp_path / "run", devices=3, interfere=interfere, flow__mode="disaggregated", **STEADY)
    assert compared == [True]


def test_a_learner_that_is_lost_goes_on_from_the_drafter_of_its_last_update(tmp_path):
    async def interfere(seen, roles, step):
        if step == 3:
            roles.learner.first.kill()

    seen = Seen(tmp_path / "run", interfere=interfere, flow__mode="disaggregated", **STEADY)
    assert seen.learned("slices") == seen.steady_slices()
    assert same(seen.trained(), seen.serving())
    assert [row["learn"].get("learners_lost", 0) for row in seen.outcome.metrics] == [0, 0, 1]


@pytest.mark.parametrize(
    "modes", [("disaggregated", "local"), pytest.param(("local", "collocated"), marks=pytest.mark.slow)]
)
def test_a_run_goes_on_with_its_drafter_in_another_mode(modes, tmp_path):
    first, then = modes
    Seen(tmp_path / "run", steps=2, flow__mode=first, **STEADY)
    seen = Seen(tmp_path / "run", steps=3, flow__mode=then, **STEADY)
    assert seen.learned("slices") == seen.steady_slices()


def test_a_resumed_drafter_serves_at_once(tmp_path):
    drafting = []

    async def interfere(seen, roles, step):
        drafting.append(same(seen.trained(), seen.serving()))

    Seen(tmp_path / "run", steps=2, flow__mode="local", **STEADY)
    Seen(tmp_path / "run", steps=3, interfere=interfere, flow__mode="disaggregated", **STEADY)
    assert drafting == [True]


class Engine:
    """Has three sequences after a turn, or dies."""

    def __init__(self, told):
        self.told, self.is_lost = told, False

    async def turn(self, orders, stepping):
        self.told.append("turn")
        if self.is_lost:
            raise WorkerLost("engine[0]", "it was killed")
        return Turn(running=3)


def test_what_runs_in_an_engine_is_told_before_it_begins_and_after_each_turn():
    told: list = []
    about = About(None, longest=64, vocab=9, wants_past=False, one_step=False)
    seat = FarSeat(engine := Engine(told), about, lambda why: None, told.append)
    asyncio.run(seat.turn([], stepping=True))
    asyncio.run(seat.turn([], stepping=True))
    assert told == [1, "turn", 3, 3, "turn", 3]
    asyncio.run(seat.turn([], stepping=False))
    assert told[6:] == ["turn", 3], "it begins nothing"
    engine.is_lost = True
    with pytest.raises(EngineLost):
        asyncio.run(seat.turn([], stepping=True))
    assert told[-1] == 0


class Learner:
    def __init__(self):
        self.told = []

    def occupied(self, share):
        self.told.append(share)


@pytest.mark.parametrize(
    ("mode", "learner_devices", "neighbour"),
    [("disaggregated", 1, None), ("hybrid", 1, 2), ("hybrid", 2, 1), ("collocated", 1, 2), ("collocated", 2, 1)],
)
def test_the_learner_hears_of_the_engine_on_its_first_device_alone(mode, learner_devices, neighbour):
    recipe = small(**WHEN_IDLE)
    flow = FlowConfig(mode=mode, learner_devices=learner_devices)
    drafters, learner = FarDrafters(recipe, place(flow, [0, 1, 2])), Learner()
    drafters.meet(learner, [])
    for engine in range(3):
        for running in (1, 4, 4, 0):
            drafters.occupied(engine, running)
    slots = recipe.engine.max_seqs
    assert learner.told == ([0.0] if neighbour is None else [0.0, 1 / slots, 4 / slots, 0.0])
    told = len(learner.told)
    with drafters.without_learner():
        drafters.occupied(neighbour or 0, 3)
        assert len(learner.told) == told, "it is not there"
    share = 0.0 if neighbour is None else 3 / slots
    assert learner.told[told:] == [share], "another in its place is told how things stand"


def test_nobody_is_told_anything_where_nothing_learns():
    for recipe in (small(), small(deterministic=True, **WHEN_IDLE), small(draft__drafters__ngram__longest=4)):
        drafters, learner = FarDrafters(recipe, place(FlowConfig(mode="disaggregated"), [0, 1])), Learner()
        drafters.meet(learner, [])
        asyncio.run(drafters.bring())
        assert learner.told == []


@pytest.fixture
def beside():
    made = BesideLearner(small(**WHEN_IDLE), toy_target(), rank=0, world=1)
    yield made
    made.training.close()


def test_nothing_is_trained_while_the_learner_works_or_is_off_its_device(beside):
    is_allowed = beside.training.trainers["adaptive"].spot._allowed.is_set
    assert not is_allowed(), "nobody has said that the device is idle"
    beside.training.occupied(0.0)
    assert is_allowed()
    with beside.at_rest():
        beside.training.occupied(0.0)
        assert not is_allowed()
    assert is_allowed()
    beside.offload()
    beside.training.occupied(0.0)
    assert not is_allowed()
    beside.onload()
    with beside.at_rest():
        pass
    assert is_allowed()
    beside.training.occupied(0.5)
    assert not is_allowed()


def test_of_several_ranks_the_first_trains():
    first, second = (BesideLearner(small(**STEADY), toy_target(), rank, world=2) for rank in range(2))
    assert first.hear is not None
    assert second.hear is None
    first.training.close()
