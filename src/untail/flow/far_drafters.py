"""Drafters that learn, where engines and learner are apart, as the driver sees them.

They are trained in the learner's process and draft in the engines'. What they learn goes to the engines with every
update's weights, and every second in between.

Invariant: an engine has a drafter's weights whole, and takes others between two turns. The learner is told how many
sequences the engine on its device has, before that engine begins and whenever the number changes; where no engine is
there, the device is idle whenever the learner waits. A learner that is being replaced is told nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from untail.config import Recipe
from untail.draft import build as drafting
from untail.flow.failures import WorkerLost
from untail.flow.placement import Placement
from untail.flow.worker import OneWorker

EVERY_S = 1.0


def that_learn(recipe: Recipe) -> list[str]:
    """Nothing is drafted in deterministic mode."""
    return [] if recipe.deterministic else list(drafting.learning(recipe.draft))


def name_of(drafter: str) -> str:
    """Under which what it has learned is published."""
    return f"drafter {drafter}"


class FarDrafters:
    def __init__(self, recipe: Recipe, placement: Placement):
        self._learn = bool(that_learn(recipe))
        self._slots = recipe.engine.max_seqs
        first = placement.learner[0]  # who trains is there
        shares = first in placement.shared
        self._neighbour = len(placement.alone) + placement.shared.index(first) if shares else None
        self._running = 0  # sequences of the engine on the learner's device
        self._version = 0
        self._there: set[str] = set()  # drafters that engines have something of
        self._has_learner = True
        self._following: asyncio.Task[None] | None = None

    def meet(self, learner: OneWorker, engines: Sequence[OneWorker]) -> None:
        self._learner, self._engines = learner, engines
        self.tell()

    def follow(self) -> None:
        """From now on, what was learned reaches engines in the middle of a step, too."""
        if self._learn:
            self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def occupied(self, engine: int, running: int) -> None:
        """So many sequences run there."""
        if engine == self._neighbour and running != self._running:
            self._running = running
            self.tell()

    def tell(self) -> None:
        """The learner how things stand."""
        if self._learn and self._has_learner:
            self._learner.occupied(self._running / self._slots)

    @contextmanager
    def without_learner(self) -> Iterator[None]:
        """Another is made in its place."""
        self._has_learner = False
        try:
            yield
        finally:
            self._has_learner = True
            self.tell()

    async def bring_to(self, number: int) -> None:
        """All there is, to an engine that is new."""
        await self._load(number, sorted(self._there))

    async def bring(self) -> None:
        """What was learned since the last time, to all engines."""
        if self._following is not None and self._following.done():
            self._following.result()  # a fault of ours
        if self._learn and self._has_learner:
            self._version += 1
            with suppress(WorkerLost):  # another learner goes on from its last update
                learned = await self._learner.publish_drafters(self._version)
                self._there.update(learned)
                await asyncio.gather(*(self._load(number, learned) for number in range(len(self._engines))))

    async def _load(self, number: int, drafters: list[str]) -> None:
        if drafters:
            with suppress(WorkerLost):  # whoever revives it brings them
                await self._engines[number].load_drafters(drafters)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.bring()
