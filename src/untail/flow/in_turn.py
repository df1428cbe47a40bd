"""One GPU in turn: its memory belongs to the engine's keys and values while it samples, to the update while it learns.

Invariant: whoever is at work has what it needs, and nothing moves that fits. Where there is room for both, or no GPU at
all, nobody sleeps. Sequences of an engine that slept are computed again, as they are after an update anyway
(`engine.kv_after_update = "recompute"`).
"""

from collections.abc import Callable

import torch

from untail.backends.native import NativeBackend
from untail.engine.engine import Engine
from untail.learn.memory import Gauge
from untail.learn.trainer import Trainer


def build_beside(engine: Engine, build: Callable[[], Trainer]) -> Trainer:
    """A trainer, with its state put away where the device does not hold it beside the engine's keys and values."""
    try:
        return build()
    except torch.OutOfMemoryError:
        pass  # outside, where the error no longer holds what was built so far
    engine.sleep()
    torch.cuda.empty_cache()
    trainer = build()
    trainer.sleep()
    engine.wake()
    return trainer


class InTurn:
    def __init__(self, backend: NativeBackend, trainer: Trainer, gauge: Gauge | None):
        self._backend = backend
        self._trainer = trainer
        self._gauge = gauge
        self._given_up = 0  # bytes of the engine's that the update has

    async def learn(self) -> None:
        """Before an update, while the engine is paused."""
        if self._gauge is None or (free := self._gauge.free()) >= self._trainer.memory_wanted:
            return
        await self._backend.sleep(1)
        self._given_up = max(1, self._gauge.free() - free)

    async def sample(self) -> None:
        """After it, when the engine has its new weights: it goes on."""
        if self._gauge is not None and self._given_up:
            if self._gauge.free() < self._given_up:
                self._trainer.sleep()
            await self._backend.wake()
            self._given_up = 0
        await self._backend.resume()
