"""The loop is written once: whatever the mode and however many devices, it learns the same from the same steps."""

import asyncio
import threading

import pytest
import torch

from tests.helpers.here import Here
from tests.unit.embodied.small import small
from tests.unit.embodied.test_learner import Meeting, weights
from untail.embodied.layout import lay_out
from untail.embodied.loop import Flow
from untail.embodied.workers import LearnWorker

LAYOUTS = {
    "alone": ("collocated", 1, {}),
    "collocated": ("collocated", 2, {}),
    "collocated, one learns": ("collocated", 2, {"learners": 1}),
    "disaggregated": ("disaggregated", 2, {}),
    "hybrid": ("hybrid", 2, {}),
    "hybrid, four devices": ("hybrid", 4, {"for_envs": 3}),
    "on the host": ("disaggregated", 1, {"on_host": True}),
}


@pytest.fixture(autouse=True)
def meetings(monkeypatch):
    """Learners in one process cannot form a process group: they meet over a barrier instead."""
    met: dict[str, Meeting] = {}
    lock = threading.Lock()

    def meet(self, address):
        with lock:
            meeting = met.setdefault(address, Meeting(len(self.layout.learn)))
        if self.rank < len(self.layout.learn):
            self.learner.total = meeting.total

    monkeypatch.setattr(LearnWorker, "meet", meet)
    monkeypatch.setattr(LearnWorker, "close", lambda self: None)


def run(config, layout, iterations=3):
    async def iterate(flow):
        return [await asyncio.wait_for(flow.iterate(), 120) for _ in range(iterations)]

    with Here(max(2, len(layout.policy) + len(layout.env))) as cluster:
        flow = Flow(cluster, config, layout)
        rows = asyncio.run(iterate(flow))
        learner = cluster.workers[f"{flow.learn.name}[0]"].learner
        return rows, weights(learner.policy), cluster.log


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_all_modes_learn_the_same(algo):
    config = small(algo, shards=4, envs=16)
    rows, learned = {}, {}
    for name, (mode, devices, more) in LAYOUTS.items():
        rows[name], learned[name], _ = run(config, lay_out(mode, devices, config.shards, **more))
    for name in LAYOUTS:
        rewards = [row.reward for row in rows[name]]
        assert rewards == pytest.approx([row.reward for row in rows["alone"]], abs=1e-5), name
        torch.testing.assert_close(learned[name], learned["alone"], atol=1e-4, rtol=1e-3, msg=name)
        assert [row.mean_return for row in rows[name]] == pytest.approx(
            [row.mean_return for row in rows["alone"]], abs=1e-4
        ), name
    assert not torch.equal(learned["alone"], run(config, lay_out("collocated", 1, 4), 2)[1])  # it goes on learning


def test_the_same_calls_in_every_mode():
    config = small()
    for mode in ("collocated", "disaggregated", "hybrid"):
        _, _, log = run(config, lay_out(mode, 2, 2), 1)
        methods = [method for _, method in log if method in ("weights", "load", "play", "serve", "learn")]
        assert list(dict.fromkeys(methods)) == ["weights", "load", "play", "serve", "learn"], mode


def test_nobody_runs_on_a_device_that_another_holds():
    """A turn of somebody else on device 0 holds up the whole iteration, and it goes on afterwards."""
    config = small()

    async def scene(cluster, flow):
        async with cluster.lock([0]):
            waiting = asyncio.create_task(flow.iterate())
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            assert "play" not in [method for _, method in cluster.log]
        await asyncio.wait_for(waiting, 120)

    with Here(2) as cluster:
        asyncio.run(scene(cluster, Flow(cluster, config, lay_out("collocated", 2, 2))))
