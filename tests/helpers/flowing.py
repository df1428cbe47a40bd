"""A training run over workers, in this process's event loop, so that a test can interfere with it."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from untail.config import Recipe, load_recipe
from untail.engine.models.load import load_model
from untail.flow.choose import make_roles
from untail.flow.role_base import Roles
from untail.resolve import resolved
from untail.rollout.live import State
from untail.run import Run
from untail.tasks.prepare import prepare
from untail.train import Training

SMALL = {
    "rollout.prompts": 4,
    "rollout.group": 4,
    "rollout.max_tokens": 48,
    "rollout.watch_every": 8,
    "validation.prompts": 4,
    "task.size": 24,
    "checkpoint_every": 2,
    "engine.max_seqs": 8,
    "engine.kv_gib": 0.05,
}
Interfere = Callable[[Roles, int], Awaitable[None]]
"""Told of the roles before each step; what it leaves running goes on during the step."""


@dataclass
class Outcome:
    folder: Path
    engines: int

    @property
    def events(self) -> list[dict[str, Any]]:
        return _rows(self.folder / "events.jsonl")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return _rows(self.folder / "metrics.jsonl")

    @property
    def losses(self) -> list[float | None]:
        """None where no group taught anything."""
        return [row["learn"].get("loss") for row in self.metrics]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["e"] == kind]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def small(name: str | None = None, steps: int = 3, **changes: Any) -> Recipe:
    """Dots in names are written as two underscores."""
    settings = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    return resolved(load_recipe(name, {"steps": steps}, [f"{key}={json.dumps(v)}" for key, v in settings.items()]))


def train(recipe: Recipe, folder: Path, interfere: Interfere | None = None) -> Outcome:
    """The run in the folder is gone on with, if there is one."""
    return asyncio.run(_train(recipe, folder, interfere))


async def _train(recipe: Recipe, folder: Path, interfere: Interfere | None) -> Outcome:
    model = load_model(recipe.model, "cpu")
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    roles = make_roles(recipe, model, data.rewards, data.prompts, data.partials)
    run = Run.resume(folder, lambda tree: recipe) if folder.exists() else Run.begin(folder, recipe)
    training = Training(run, roles, data.held_out, lambda row: None, asyncio.Event())
    try:
        await training.begin()
        for step in range(training.progress.step + 1, recipe.steps + 1):
            if interfere is not None:
                await interfere(roles, step)
            assert await training.one_step()
        await training.end()
        return Outcome(folder, roles.engines)
    finally:
        run.close()
        await roles.close()


async def someone_runs(roles: Any, engine: int, tokens: int = 1) -> None:
    """Until a member on this engine has written so many tokens."""
    while not any(
        member.state is State.RUNNING and member.engine == engine and member.length >= tokens
        for member in list(roles.controller.stage.members.values())
    ):
        await asyncio.sleep(0.001)


async def engine_is_there(roles: Any, engine: int) -> None:
    while not roles.controller.stage.fleet.slots.is_open(engine):
        await asyncio.sleep(0.001)


def check_books(outcome: Outcome) -> None:
    """Nothing that was finished is lost, nothing is trained twice, every token is accounted for."""
    assert {row["accounts"]["unaccounted"] for row in outcome.metrics} == {0}
    trained = Counter(member["id"] for event in outcome.all("train") for member in event["members"])
    assert set(trained.values()) == {1}
    finished = Counter(event["id"] for event in outcome.all("end"))
    assert set(finished.values()) == {1}
    dropped = {event["group"] for event in outcome.all("drop")}
    groups = {event["id"]: event["group"] for event in outcome.all("end")}
    last = outcome.all("rolled_out")[-1]
    waiting = {name for name in finished if name not in trained and groups[name] not in dropped}
    assert not waiting or last["carried"] > 0, f"{waiting} finished, and nobody knows what became of them"
