"""The simulator behind the backend protocol: the same controller, in virtual time and without a model.

Invariant: an operation is applied when it is called, to an engine that is up to date; one timer stands for the engine's
next event. The engine's time is the clock's less all pauses. Runs under `virtual_loop.py` and needs no thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from untail.backends.base import Capabilities, Clock, Load, LoopClock, PauseMode
from untail.backends.laws import Law
from untail.backends.sim_device import SimConfig
from untail.backends.sim_engine import SimEngine
from untail.backends.sim_sequence import Sequence
from untail.errors import RequestError, SequenceStateError
from untail.types import Chunk, Forked, SequenceSpec

T = TypeVar("T")


class SimBackend:
    capabilities = Capabilities(entropy="exact", fork="cow", hidden=False, draft=True)

    def __init__(self, law: Law, config: SimConfig):
        self.engine = SimEngine(law, config)
        self.clock: Clock = LoopClock()
        self._unread: dict[str, Sequence] = {}  # children of forks whose streams nobody reads yet
        self._nothing_runs = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._paused_at: float | None = None
        self._lost_s = 0.0  # to pauses
        self._closed = False

    def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        return self._read(lambda: self._control(lambda: self.engine.add(spec)))

    def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        return self._read(lambda: self._claim(name))

    async def extend(self, name: str, budget: int) -> None:
        self._control(lambda: self.engine.extend(name, budget))

    async def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        self._control(lambda: self.engine.append(name, tokens, budget))

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> Forked:
        def fork() -> Forked:
            forked = self.engine.fork(name, streams, temperatures)
            self._unread.update((child, self.engine.sequences[child]) for child in forked.children)
            return forked

        return self._control(fork)

    async def release(self, name: str) -> None:
        self._control(lambda: self.engine.release(name))

    async def cut(self, names: list[str]) -> None:
        self._control(lambda: self.engine.cut(names))

    async def abort(self, names: list[str]) -> None:
        self._control(lambda: self.engine.abort(names))

    def load(self) -> Load:
        self._catch_up()
        engine = self.engine
        kv_used = engine.kv / engine.config.kv_tokens
        return Load(kv_used, engine.busy_s, engine.computed, engine.sampled, engine.recomputed, engine.preemptions)

    def step_seconds(self, batch: int) -> float:
        return self.engine.config.step_seconds(batch)

    async def pause(self, mode: PauseMode) -> None:
        if mode not in ("keep", "wait", "abort"):
            raise RequestError(f"pause mode {mode!r} is unknown; use keep, wait or abort")
        if mode == "wait":
            await self._let_what_runs_end()
        if self._paused_at is None:
            self._paused_at = self.clock.now()
        self._control(lambda: self.engine.abort(list(self.engine.sequences) if mode == "abort" else []))

    async def resume(self) -> None:
        if self._paused_at is not None:
            self._lost_s += self.clock.now() - self._paused_at
            self._paused_at = None
        self._catch_up()

    async def load_weights(self, source: Any, version: int) -> None:
        """There are no weights: the source is not looked at."""
        self._control(lambda: self.engine.load_weights(version))

    async def sleep(self, level: int) -> None:
        if level != 1:
            raise RequestError(f"sleep level {level} is not supported; level 1 gives up the KV pool")
        await self.pause("keep")
        self._control(lambda: self.engine.evict_all(for_update=False))

    async def wake(self) -> None:
        await self.resume()

    async def close(self) -> None:
        if not self._closed:
            await self.pause("abort")
            self._closed = True

    async def _read(self, begin: Callable[[], Sequence]) -> AsyncGenerator[Chunk, None]:
        sequence = begin()
        try:
            while (chunk := await sequence.chunks.get()) is not None:
                yield chunk
        finally:
            if self.engine.sequences.get(sequence.id) is sequence:  # its consumer went away
                self._control(lambda: self.engine.drop(sequence))

    def _claim(self, name: str) -> Sequence:
        if name not in self._unread:
            raise SequenceStateError(f"sequence {name!r} has no stream here: unknown, or somebody reads it already")
        return self._unread.pop(name)

    async def _let_what_runs_end(self) -> None:
        self.engine.admits_new = False
        self._catch_up()
        try:
            await self._nothing_runs.wait()
        except asyncio.CancelledError:
            self.engine.admits_new = True
            self._catch_up()
            raise
        self.engine.admits_new = True

    def _catch_up(self) -> None:
        if not self._closed:
            self._control(lambda: None)

    def _control(self, apply: Callable[[], T]) -> T:
        """Bring the engine up to now, apply the change, and let it go on."""
        if self._closed:
            raise RuntimeError("this backend takes no more work (the backend is closed); make a new one")
        now = (self.clock.now() if self._paused_at is None else self._paused_at) - self._lost_s
        self.engine.advance(now)
        try:
            return apply()
        finally:
            if self._paused_at is None:
                self.engine.refill(now)
            self._set_timer()

    def _set_timer(self) -> None:
        """For the next event. A timer that is too early stays: it costs less to wake for nothing once."""
        if self.engine.in_flight:
            self._nothing_runs.clear()
        else:
            self._nothing_runs.set()
        when = self.engine.next_event() if self._paused_at is None else None
        if self._timer is not None and (when is None or when + self._lost_s < self._timer.when()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and when is not None:
            self._timer = asyncio.get_running_loop().call_at(when + self._lost_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._catch_up()
