"""The simulated learner: it takes time, devices and batches, and gives versions.

Invariant: batches are learned from one after the other, in the order in which they came; a version is published when
all of it is learned, and to all engines at once. While it learns on devices that engines have too, those stand still.
"""

import asyncio
from collections.abc import Callable, Sequence

from untail.backends.sim import SimBackend
from untail.simulate.scene import Scene
from untail.types import Event, Group

Emit = Callable[[Event], None]


class SimLearner:
    def __init__(self, scene: Scene, backends: Sequence[SimBackend], in_flight: bool):
        """`in_flight`: engines get new weights at once, whatever they are at; else when they are published."""
        self.scene = scene
        self.version = 0  # that is learned
        self.published = 0
        self.busy_s = 0.0
        self._backends = backends
        self._clock = backends[0].clock
        self._in_flight = in_flight
        shared = scene.learner_devices if scene.mode == "hybrid" else 0
        self._shared = backends[len(backends) - shared :]
        self._is_learning = False
        self._turn = asyncio.Lock()
        self._learned = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, step: int, groups: list[Group], emit: Emit) -> None:
        """Nobody waits for it here."""
        self._tasks.append(asyncio.create_task(self._learn(step, groups, emit)))

    async def until(self, version: int) -> None:
        async with self._learned:
            await self._learned.wait_for(lambda: self.version >= version or self._has_failed)
        if self._has_failed:
            await asyncio.gather(*self._tasks)

    async def publish(self) -> None:
        """The newest weights go to all engines, which stand still meanwhile."""
        if self.published == self.version:
            return
        version = self.published = self.version
        if self.scene.handover_s:
            for backend in self._backends:
                await backend.pause("keep")
            await self._clock.sleep(self.scene.handover_s)
        for backend in self._backends:
            await backend.load_weights(None, version)
        if self.scene.handover_s:
            for backend in self._backends:
                if not (self._is_learning and backend in self._shared):
                    await backend.resume()

    @property
    def _has_failed(self) -> bool:
        return any(task.done() and task.exception() is not None for task in self._tasks)

    async def _learn(self, step: int, groups: list[Group], emit: Emit) -> None:
        try:
            async with self._turn:
                await self._update(groups)
                emit({"e": "update", "t": self._clock.now(), "step": step})
                self.version = step
                if self._in_flight:
                    await self.publish()
                emit({"e": "done", "t": self._clock.now(), "step": step})
        finally:
            async with self._learned:
                self._learned.notify_all()

    async def _update(self, groups: list[Group]) -> None:
        self._is_learning = True
        for backend in self._shared:
            await backend.pause("keep")
        tokens = sum(len(t.prompt.tokens) + len(t.tokens) for group in groups for t in group.trajectories)
        seconds = self.scene.update_seconds(tokens)
        await self._clock.sleep(seconds)
        self.busy_s += seconds
        self._is_learning = False
        for backend in self._shared:
            await backend.resume()
