"""The learner as the driver has it: a worker, or several that are its ranks, replaced when one is lost.

Invariant: an update is made once, from the batch and the state that the update before left, whoever dies meanwhile.
When one rank is lost all are replaced: those that are left would wait for it. One that is lost again while it is being
replaced counts, and is replaced again.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from untail.flow.failures import WorkerFailed, WorkerLost
from untail.flow.handle import all_ended
from untail.flow.portions import Portions
from untail.flow.worker import OneWorker, WorkerGroup
from untail.learn import checkpoint
from untail.notice import say
from untail.types import Batch

MOST_LOSSES = 3  # in one update
LOOKS, LOOK_S = 50, 0.1  # at whether a rank is gone


class FarLearner:
    def __init__(
        self,
        ranks: WorkerGroup,
        portions: Portions,
        recovers: bool,
        without: Callable[[], AbstractContextManager[None]],
    ):
        """`without`: a context in which nobody else may call it."""
        self.ranks = ranks
        self.portions = portions
        self._recovers = recovers
        self._without = without
        self._lost = 0  # since the last update
        self._meet()

    @property
    def first(self) -> OneWorker:
        """Speaks for all."""
        return self.ranks[0]

    async def mend(self, version: int) -> None:
        """Before its turn: a rank may have died between two steps."""
        if self._lacks_a_rank:
            self._lost += 1
            await self._replace(version)

    async def update(self, batch: Batch) -> dict[str, float]:
        """If it is lost, another makes the same update from the same state."""
        figures: dict[str, float] | None = None
        while figures is None:
            try:
                early = await self.portions.arrive()
                figures = (await self.ranks.update(self.portions.rest_of(batch)))[0] | early
            except (WorkerLost, WorkerFailed) as error:
                await self._count(error)
                figures = await self._replace(batch.version)
        lost, self._lost = self._lost, 0
        return figures | ({"learners_lost": lost} if lost else {})

    async def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        learned: tuple[dict[str, Tensor], dict[str, Any]] = (await self.ranks.state_dict())[0]
        return learned

    @property
    def saves_shards(self) -> bool:
        """With several ranks, each its own."""
        return len(self.ranks) > 1

    async def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        return (await self.ranks.save(folder.absolute(), step, state, keep))[0]

    async def restore(self, path: Path, state: dict[str, Any]) -> None:
        """From a checkpoint of either form, however many ranks it was made with."""
        step = checkpoint.step_of(path)
        if self.saves_shards and checkpoint.is_sharded(path):
            await self.ranks.restore(path.absolute(), step)
        else:
            own = {"trainer": state["trainer"], "draft": state["draft"]}
            await self.ranks.load_state_dict(checkpoint.load(path).tensors, own, step)

    async def export(self, folder: Path) -> None:
        await self.ranks.export(folder.absolute())

    async def _count(self, error: WorkerLost | WorkerFailed) -> None:
        """A loss. Raises what is none, and one too many."""
        if not isinstance(error, WorkerLost) and not await self._comes_to_lack_a_rank():
            raise error
        self._lost += 1
        if not self._recovers or self._lost > MOST_LOSSES:
            raise error

    async def _replace(self, version: int) -> dict[str, float] | None:
        """The figures of the next update, if that was made already. Whoever is lost meanwhile is replaced, too."""
        while True:
            try:
                return await self._make_another(version)
            except (WorkerLost, WorkerFailed) as error:
                await self._count(error)

    async def _make_another(self, version: int) -> dict[str, float] | None:
        say("the learner is lost: another one is started, and goes on from the last update")
        self.portions.forget()
        with self._without():
            # Before one that failed is tried again: nobody is revived twice at a time.
            await all_ended(asyncio.to_thread(worker.revive) for worker in self.ranks)
            await asyncio.to_thread(self._meet)
        figures: list[dict[str, float] | None] = await self.ranks.recover(version)
        return figures[0]

    def _meet(self) -> None:
        if len(self.ranks) > 1:
            self.ranks.meet(self.first.free_address().wait()).wait()

    @property
    def _lacks_a_rank(self) -> bool:
        return not all(worker.is_alive for worker in self.ranks)

    async def _comes_to_lack_a_rank(self) -> bool:
        """Whoever was talking to a rank that died may know of it before we do."""
        for _ in range(LOOKS if len(self.ranks) > 1 else 0):
            if self._lacks_a_rank:
                return True
            await asyncio.sleep(LOOK_S)
        return False
