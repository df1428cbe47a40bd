"""The roles in processes of their own: engines and a learner, in turn or side by side, on this machine or over Ray.

Invariant: the driver keeps what nobody else may lose: the trajectories with every token that an engine has told, the
batch under way, the progress. An engine that dies costs what it had not told; a learner that dies (far_learner.py), the
update it was at. Whoever is lost is replaced, and the run goes on. Weights reach an engine whole, while it is paused.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from untail.backends.base import Backend, EngineLost
from untail.backends.native import SeatedBackend
from untail.backends.step_clock import StepClock
from untail.config import Recipe, RolloutConfig
from untail.engine.models.load import LoadedModel
from untail.errors import ConfigError, UserError
from untail.flow.ahead import Ahead
from untail.flow.auto import Auto
from untail.flow.cluster import Cluster
from untail.flow.engine_worker import EngineWorker, FarSeat, Published
from untail.flow.failures import WorkerLost
from untail.flow.far_drafters import FarDrafters
from untail.flow.far_exchange import FarExchange
from untail.flow.far_learner import FarLearner
from untail.flow.given import Given
from untail.flow.learner_worker import LearnerWorker
from untail.flow.placement import lead_of, place, refuse_nccl, refuse_what_cannot_be, staleness_of
from untail.flow.portions import Portions, portion_of
from untail.flow.role_base import Roles, Tables
from untail.flow.switch import Turns
from untail.flow.worker import OneWorker, WorkerGroup
from untail.learn import checkpoint
from untail.notice import say
from untail.rollout import memory
from untail.types import Batch, Group, Prompt, Trajectory


class WorkerRoles(Roles):
    def __init__(
        self,
        recipe: Recipe,
        model: LoadedModel,
        rewards: Tables,
        prompts: list[Prompt],
        cluster: Cluster,
        partials: Tables | None = None,
        auto: Auto | None = None,
    ):
        self.cluster = cluster
        self.auto = auto
        self.placement = place(recipe.flow, cluster.devices) if auto is None else auto.place(cluster.devices)
        self._refuse(recipe)
        self.drafters = FarDrafters(recipe, self.placement)
        super().__init__(recipe, model, rewards, prompts, partials)
        ranks = [[device] for device in self.placement.learner]
        learner = cluster.group(LearnerWorker, recipe, devices=ranks, name="learner")
        self._turns = Turns(cluster, self._capacity())
        portions = Portions(self._turns, learner, recipe.rollout.prompts)
        self.learner = FarLearner(learner, portions, recipe.flow.recover, self._without_learner)
        self._exchange = FarExchange(self.learner.first, recipe.flow.weights)
        self.drafters.meet(self.learner.first, self.workers)
        self.version = 0  # of the weights that the engines have
        self._weights = asyncio.Lock()  # one at a time brings weights to engines
        self._stay: AsyncExitStack | None = None  # of the engines that share devices, while they are there
        self._reviving: set[asyncio.Task[None]] = set()
        self._memories: dict[int, dict[str, Any]] = {}
        lead = lead_of(recipe) if self.placement.alone else 0  # where all take turns, nobody samples meanwhile
        self._ahead = Ahead(self.roll_out_from, self._rolled_out, lead, recipe.steps) if lead else None
        self._step = 0  # the last one whose rollout was asked for

    @property
    def devices(self) -> int:
        return len({*self.placement.alone, *self.placement.shared, *self.placement.learner})

    @property
    def plan(self) -> dict[str, Any] | None:
        return None if self.auto is None else self.auto.plan.as_json()

    def should_move(self, row: dict[str, Any], steps_left: int) -> bool:
        return self.auto is not None and self.auto.hear(row, steps_left)

    def _refuse(self, recipe: Recipe) -> None:
        refuse_what_cannot_be(recipe)
        refuse_nccl(recipe, self.placement, self.cluster.on_gpus)
        engines = len(self.placement.alone) + len(self.placement.shared)
        if recipe.deterministic and engines > 1:
            raise ConfigError(
                f"deterministic = true needs one engine, and flow.devices gives {engines}: which of them is faster "
                "decides what is sampled together; lower flow.devices"
            )

    # ---- engines ----------------------------------------------------------------------------------------------

    def _seat_engines(self) -> Sequence[Backend]:
        groups = [
            self.cluster.group(EngineWorker, self.recipe, devices=[[device] for device in devices], name=name)
            for name, devices in (("engine", self.placement.alone), ("shared", self.placement.shared))
            if devices
        ]
        self.shared: WorkerGroup | None = groups[-1] if self.placement.shared else None
        self.workers: list[OneWorker] = [worker for group in groups for worker in group]
        abouts = [about for group in groups for about in group.about().wait()]
        self.longest, self.vocab, self.wants_past = abouts[0].longest, abouts[0].vocab, abouts[0].wants_past
        there = list(zip(self.workers, abouts, strict=True))
        self.seats = [
            FarSeat(worker, about, partial(self._is_lost, n), partial(self.drafters.occupied, n))
            for n, (worker, about) in enumerate(there)
        ]
        clock = lambda: StepClock() if self.recipe.deterministic else None
        self._seated = [
            SeatedBackend(seat, about.load, clock()) for seat, about in zip(self.seats, abouts, strict=True)
        ]
        return self._seated

    def _capacity(self) -> float:
        """Bytes that a device holds; where nobody shares one, nothing has to fit."""
        return 0.0 if self.shared is None else float(self.shared[0].capacity().wait())

    def _is_lost(self, number: int, why: str) -> None:
        self.controller.engine_is_lost(number, why)
        self._exchange.forget()
        task = asyncio.create_task(self._revive(number))
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _revive(self, number: int) -> None:
        worker, backend = self.workers[number], self._seated[number]
        if self.recipe.deterministic:
            gone = UserError(f"{worker.name} is lost, and a deterministic run cannot tell another one's time; --resume")
            self.controller.give_up(gone)
            return
        say(f"{worker.name} is lost: its sequences go on elsewhere, and another one is started")
        try:
            await asyncio.to_thread(worker.revive)
            about = await worker.about()
        except (WorkerLost, UserError) as error:
            if not any(worker.is_alive for worker in self.workers):
                self.controller.give_up(error)
            return
        async with self._weights:
            self.seats[number].back()
            backend.revive(about.load)
            with suppress(EngineLost):  # it is lost again, and is revived again
                if self.version:
                    await backend.load_weights(Published(), self.version)
                await self.drafters.bring_to(number)
        self.controller.engine_is_back(number)

    async def _bring_weights(self, version: int) -> None:
        async def bring(backend: SeatedBackend) -> None:
            with suppress(EngineLost):  # whoever revives it brings them
                await backend.pause("keep")
                await backend.load_weights(Published(), version)
                await backend.resume()

        async with self._weights:
            self.version = version
            await self._exchange.send(version, [worker for worker in self.workers if worker.is_alive])
            await asyncio.gather(*map(bring, self._seated))
        if self._ahead is not None:
            self._ahead.published(version)

    # ---- taking turns -----------------------------------------------------------------------------------------

    async def _engines_come(self) -> None:
        if self.shared is None or self._stay is not None:
            return
        stay = AsyncExitStack()
        try:
            await stay.enter_async_context(self._turns.of(self.shared))
        except WorkerLost:
            await self._mend()
            await stay.enter_async_context(self._turns.of(self.shared))
        self._stay = stay

    async def _mend(self) -> None:
        """Whoever is lost is back when this returns."""
        for backend in self._seated:
            with suppress(EngineLost):
                await backend.cut([])  # nobody: those who are gone cannot even do that
        await asyncio.gather(*self._reviving)

    async def _engines_go(self) -> None:
        if self._stay is not None:
            stay, self._stay = self._stay, None
            await stay.aclose()

    @asynccontextmanager
    async def _learners_turn(self) -> AsyncIterator[None]:
        """What runs on the learner's devices goes on elsewhere, if a rollout is under way; else nothing runs."""
        first = len(self.placement.alone)
        lent = range(first, len(self.workers)) if self._ahead is not None else range(0)
        for number in lent:
            await self.controller.lend(number)
        await self._engines_go()
        async with self._turns.of(self.learner.ranks):
            yield
        await self._engines_come()
        for number in lent:
            self.controller.engine_is_back(number)

    # ---- the rollout ------------------------------------------------------------------------------------------

    def rollout_config(self) -> RolloutConfig:
        return self.recipe.rollout.model_copy(update={"max_staleness": staleness_of(self.recipe)})

    async def begin(self, folder: Path, is_new: bool) -> None:
        await super().begin(folder, is_new)
        self.drafters.follow()
        self.to_close.push_async_callback(self._stop)

    async def _stop(self) -> None:
        if self._ahead is not None:
            await self._ahead.close()
        await self.learner.portions.close()
        await self.drafters.close()
        for task in self._reviving:
            task.cancel()
        await self._engines_go()

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        await self._engines_come()
        return await super().validate(step, prompts, temperature)

    async def roll_out(self, step: int, channel: Given) -> None:
        await self._engines_come()
        self._step = step
        if self._ahead is None:
            await super().roll_out(step, channel)
        else:
            await self._ahead.give(step, channel)

    def _rolled_out(self, step: int) -> None:
        self._memories[step] = memory.remember(self.controller.stage)

    def remember(self) -> None:
        """Of rollouts that run ahead: the state after the step's own, whatever has begun since."""
        if self._ahead is None or self._step not in self._memories:
            super().remember()
        else:
            self._memory = self._memories.pop(self._step)

    # ---- the learner ------------------------------------------------------------------------------------------

    @property
    def hands_on_early(self) -> bool:
        return self._portion < self.recipe.rollout.prompts

    @property
    def _portion(self) -> int:
        return portion_of(self.recipe) if self.auto is None else self.auto.portion

    def hand_on(self, step: int, group: Group) -> None:
        self.learner.portions.take(step, group, self._portion)

    async def update(self, batch: Batch) -> dict[str, float]:
        if self._ahead is None:
            await self._pause()  # nothing runs, but time must stand still where it is ours
        await self.learner.mend(batch.version)
        async with self._learners_turn():
            figures = await self.learner.update(batch)
        await self._bring_weights(batch.step)
        await self.drafters.bring()
        return figures | self._exchange.figures()

    async def _pause(self) -> None:
        for backend in self._seated:
            with suppress(EngineLost):
                await backend.pause("keep")

    @contextmanager
    def _without_learner(self) -> Iterator[None]:
        self._exchange.forget()
        with self.drafters.without_learner():
            yield

    async def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return await self.learner.state_dict()

    async def write_checkpoint(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        if self.learner.saves_shards:
            return await self.learner.save(folder, step, state, keep)
        return await super().write_checkpoint(folder, step, state, keep)

    async def relearn(self, path: Path, state: dict[str, Any]) -> None:
        await self.learner.restore(path, state)
        if step := checkpoint.step_of(path):
            await self._engines_come()
            await self._bring_weights(step)
        await self.drafters.bring()

    async def write_model(self, folder: Path) -> None:
        await self.learner.export(folder)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            self.cluster.close()
