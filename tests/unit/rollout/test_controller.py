"""The controller alone, against a scripted backend."""

import asyncio
from dataclasses import dataclass, field

import pytest

from untail.backends.base import RealClock
from untail.config import RolloutConfig
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.types import Chunk, Group, Prompt

PROMPTS = [Prompt(f"p{n}", "t", "", (1, 2, n)) for n in range(3)]


def chunk(tokens: list[int], end: str | None) -> Chunk:
    zeros = [0.0] * len(tokens)
    return Chunk(tokens, zeros, zeros, zeros, zeros, [0] * len(tokens), [False] * len(tokens), None, end)


@dataclass
class Scripted:
    """Yields what the script says for a sequence; counts how many run at once."""

    script: dict[str, list]
    clock: RealClock = field(default_factory=RealClock)
    running: int = 0
    most: int = 0
    specs: list = field(default_factory=list)

    async def generate(self, spec):
        self.specs.append(spec)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for item in self.script.get(spec.id, [chunk([7, 8], None), chunk([9], "stop")]):
                await asyncio.sleep(0)
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.running -= 1


class Words:
    def decode(self, tokens):
        return " ".join(map(str, tokens))


class Lengths:
    async def score(self, prompt, response):
        return Score(float(len(response.split())))


def controller(script=(), concurrency=4) -> tuple[Controller, Scripted]:
    backend = Scripted(dict(script))
    config = RolloutConfig(prompts=3, group=2, max_tokens=5, temperature=0.8)
    return Controller(backend, Lengths(), Words(), config, (0,), concurrency, seed=1), backend


async def roll_out(controller: Controller) -> tuple[list[Group], list[dict]]:
    items: list = []

    async def put(item):
        items.append(item)

    await controller.roll_out(4, PROMPTS, put)
    groups = [item for item in items if isinstance(item, Group)]
    return groups, [item for item in items if not isinstance(item, Group)]


async def test_groups_are_whole_scored_and_within_the_slots():
    made, backend = controller(concurrency=2)
    groups, events = await roll_out(made)
    assert sorted(group.prompt.id for group in groups) == ["p0", "p1", "p2"]
    assert all(group.rewards == [3.0, 3.0] for group in groups)
    assert backend.most == 2
    for kind in ("start", "end", "score"):
        assert len([event for event in events if event["e"] == kind]) == 6


async def test_every_trajectory_has_a_stream_of_its_own_that_depends_on_seed_and_step_only():
    made, backend = controller()
    await roll_out(made)
    streams = {spec.id: spec.stream for spec in backend.specs}
    assert len(set(streams.values())) == 6
    again, backend = controller()
    await roll_out(again)
    assert {spec.id: spec.stream for spec in backend.specs} == streams


async def test_the_policy_is_measured_at_the_training_temperature():
    made, backend = controller()
    await roll_out(made)
    assert {(s.sampling.temperature, s.sampling.policy_temperature) for s in backend.specs} == {(0.8, 0.8)}
    backend.specs.clear()
    await made.validate(0, PROMPTS, 0.0)
    assert {(s.sampling.temperature, s.sampling.policy_temperature) for s in backend.specs} == {(0.0, 0.8)}


async def test_a_response_that_reaches_its_limit_is_cut_off_there():
    name = "train-4/p1/0"
    made, _ = controller({name: [chunk([1, 2, 3, 4, 5], "boundary")]})
    groups, events = await roll_out(made)
    (end,) = [event for event in events if event["e"] == "end" and event["id"] == name]
    assert (end["end"], end["tokens"]) == ("length", 5)
    (group,) = [group for group in groups if group.prompt.id == "p1"]
    assert group.rewards == [5.0, 3.0]


async def test_an_error_comes_out_as_itself_and_nothing_runs_on():
    made, backend = controller({"train-4/p2/1": [chunk([1], None), MemoryError("no room")]})
    with pytest.raises(MemoryError, match="no room"):
        await roll_out(made)
    assert backend.running == 0


async def test_a_cancelled_validation_leaves_nothing_running():
    made, backend = controller({f"valid-0/p{n}/0": [chunk([1], None)] * 10_000 for n in range(3)})
    task = asyncio.create_task(made.validate(0, PROMPTS, 1.0))
    while backend.running < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.running == 0
