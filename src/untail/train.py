"""The training loop: roll out, score, learn, publish; now and then validate and save.

Invariant: after step k the weights have version k, the metrics have k rows, and a checkpoint of k holds all that step
k + 1 depends on. The loop knows roles and channels, not processes: where and how finely they run is not in it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from statistics import fmean
from typing import Any, TypeVar

import torch

from untail import __version__
from untail.errors import UserError
from untail.flow.channel import Channel
from untail.flow.given import Given
from untail.flow.role_base import Roles
from untail.observe.events import SCHEMA, read_lines
from untail.observe.interval import mean_interval
from untail.observe.metrics import step_metrics
from untail.run import Run
from untail.types import Batch, Event, Group, Progress, Prompt, Trajectory

T = TypeVar("T")


class Stopped(Exception):
    """Somebody asked the run to stop; everything up to the last whole step is saved."""


class Moved(Exception):
    """The roles are to move; everything up to the last whole step is saved, for others to go on from."""


class Training:
    def __init__(
        self,
        run: Run,
        roles: Roles,
        held_out: list[Prompt],
        show: Callable[[dict[str, Any]], None],
        stop: asyncio.Event,
        may_move: bool = False,
    ):
        """`may_move`: whoever runs it makes other roles when `Moved` is raised."""
        self.run, self.recipe, self.roles = run, run.recipe, roles
        self.held_out = held_out
        self.show = show  # hears of every metrics row and every validation
        self.stop = stop
        self.may_move = may_move
        self.progress = Progress()
        self.began = 0.0  # on the roles' clock, as if the run had never been interrupted
        self.sizes: dict[str, int] = {}  # of the run's files after the last whole step

    async def train(self) -> Progress:
        """All steps that are left. Raises `Stopped` if it was asked to stop on the way, or `Moved`."""
        await self.begin()
        while await self.one_step():
            pass
        return await self.end()

    async def begin(self) -> None:
        recipe = self.recipe
        await self.roles.begin(self.run.folder, is_new=self.run.resumed_from is None)
        if self.run.resumed_from is not None:
            self.progress = Progress(**(await self.roles.restore(self.run.resumed_from))["progress"])
        self.began = self.roles.now() - self.progress.seconds
        self._log(
            "run",
            schema=SCHEMA,
            untail=__version__,
            threads=torch.get_num_threads(),
            concurrency=recipe.engine.max_seqs * self.roles.engines,
            engines=self.roles.engines,
            devices=self.roles.devices,
            **({"plan": plan} if (plan := self.roles.plan) else {}),
            recipe=recipe.model_dump(mode="json"),
        )
        async with self._saved_if_stopped():
            self._step_is_whole(self.progress.step)
            await self._validate_if_due()

    async def one_step(self) -> bool:
        """The next step, with what is due after it; False if there is none left."""
        step, recipe = self.progress.step + 1, self.recipe
        if step > recipe.steps:
            return False
        async with self._saved_if_stopped():
            metrics = await self._step(step)
            self._step_is_whole(step)
            await self._validate_if_due()
            moves = self.may_move and step < recipe.steps and self.roles.should_move(metrics, recipe.steps - step)
            if moves or step == recipe.steps or step % recipe.checkpoint_every == 0:
                await self._save()
        if moves:
            raise Moved
        return True

    async def end(self) -> Progress:
        await self.roles.export(self.run.folder / "model")
        return self.progress

    @asynccontextmanager
    async def _saved_if_stopped(self) -> AsyncIterator[None]:
        try:
            yield
        except Stopped:
            await self._save()
            raise

    async def _step(self, step: int) -> dict[str, Any]:
        begin = self.run.events.size
        channel: Given = Channel()
        rollout = asyncio.create_task(self.roles.roll_out(step, channel))
        groups = await self._unless_stopped(self._collect(step, channel), rollout)
        self._refuse_if_nothing_was_scored(f"step {step}", [t for group in groups for t in group.trajectories])
        # They come by age; their order must not depend on that, or no run could be repeated.
        underway = sorted(await self.roles.underway(), key=lambda group: group.id)
        batch = Batch(step, sorted(groups, key=lambda group: group.id), underway)
        figures = await self.roles.update(batch)
        self._log("update", step=step, **figures)
        self._log("done", step=step)
        events, slots = read_lines(self.run.events.path, begin), self.recipe.engine.max_seqs * self.roles.engines
        metrics = step_metrics(events, slots, self.roles.engines, self.roles.devices)
        self.progress.tokens += metrics["tokens"]
        self.run.metrics.write(metrics)
        self.show(metrics)
        return metrics

    async def _collect(self, step: int, channel: Given) -> list[Group]:
        groups = []
        async for item in channel:
            if isinstance(item, Group):
                groups.append(item)
                self.roles.hand_on(step, item)
            else:
                for event in item:
                    self._write(event)
        return groups

    def _step_is_whole(self, step: int) -> None:
        """What is written up to here belongs to it; what follows belongs to the next, and is cut off if that fails."""
        self.progress.step, self.progress.seconds = step, self.roles.now() - self.began
        self.roles.remember()
        self.sizes = self.run.sizes

    async def _validate_if_due(self) -> None:
        """A resumed run makes up what it was stopped in."""
        step, every = self.progress.step, self.recipe.validation.every
        if step in (0, self.recipe.steps) or (every and step % every == 0):
            if str(step) not in self.progress.validations:
                await self._validate(step)
            self.sizes = self.run.sizes

    async def _validate(self, step: int) -> None:
        work = self.roles.validate(step, self.held_out, self.recipe.validation.temperature)
        trajectories = await self._unless_stopped(work)
        failed = self._refuse_if_nothing_was_scored(f"the validation after step {step}", trajectories)
        scores = [trajectory.reward for trajectory in trajectories]
        result = {
            "score": fmean(scores),
            "ci95": list(mean_interval(scores)),
            "n": len(scores),
            "mean_len": fmean(trajectory.length for trajectory in trajectories),
            "score_failures": failed,
        }
        self.progress.validations[str(step)] = result
        self._log("validation", step=step, **result)
        self.show({"step": step, "validation": result})

    async def _save(self) -> None:
        self.run.sync()
        state = {"progress": asdict(self.progress), "sizes": self.sizes}
        folder = self.run.folder / "checkpoints"
        await self.roles.save(folder, self.progress.step, state, self.recipe.keep_checkpoints)

    async def _unless_stopped(self, work: Awaitable[T], *helpers: asyncio.Task[None]) -> T:
        """The work's result; if a stop is asked for first, the work and its helpers are cancelled."""
        task = asyncio.ensure_future(work)
        asked = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            if self.stop.is_set():
                raise Stopped
            return task.result()
        finally:
            for other in (task, asked, *helpers):
                other.cancel()
            await asyncio.gather(task, asked, *helpers, return_exceptions=True)

    def _log(self, event: str, **fields: Any) -> None:
        self._write({"e": event, "t": self.roles.now(), **fields})

    def _write(self, event: Event) -> None:
        self.run.events.write({**event, "t": event["t"] - self.began})

    @staticmethod
    def _refuse_if_nothing_was_scored(where: str, trajectories: list[Trajectory]) -> int:
        """The number of answers whose scorer failed; if all did, going on is no use."""
        failures = [trajectory.failure for trajectory in trajectories if trajectory.failure]
        if len(failures) == len(trajectories):
            raise UserError(
                f"every one of the {len(failures)} answers of {where} failed to be scored (the first: {failures[0]}); "
                "mend the reward and go on with --resume"
            )
        return len(failures)
