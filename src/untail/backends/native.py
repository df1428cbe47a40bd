"""The native engine behind the backend protocol.

Invariant: one worker thread owns the engine. Between two steps it applies the control that has arrived since, in order;
then it takes one step; the event loop hands the chunks to their streams. Nobody else touches the engine.

In deterministic mode the next step waits until consumers have dealt with their chunks and what they asked for is
applied: which sequences share a step then depends on nothing but the work itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from untail.backends.base import Capabilities, Clock, PauseMode, RealClock
from untail.engine.engine import Engine, StepFailed
from untail.engine.weights import Source
from untail.errors import RequestError, SequenceStateError
from untail.types import Chunk, SequenceSpec

SETTLED_AFTER = 16  # turns of the event loop in which nobody asked for anything


@dataclass
class Control:
    apply: Callable[[], Any]
    done: asyncio.Future[Any]


@dataclass
class Turn:
    """What the worker thread brings back: the outcome of each control, and what each stream gets."""

    outcomes: list[tuple[asyncio.Future[Any], Any, Exception | None]]
    items: list[tuple[str, "Item"]]
    in_flight: bool = False


Item = Chunk | Exception | None
"""What a stream's queue carries; None closes it."""


class NativeBackend:
    capabilities = Capabilities(entropy="exact", fork="cow", hidden=True, draft=False)

    def __init__(self, engine: Engine, deterministic: bool = False):
        self.engine = engine
        self.clock: Clock = RealClock()
        self._deterministic = deterministic
        self._queues: dict[str, asyncio.Queue[Item]] = {}
        self._controls: list[Control] = []
        self._arrived = asyncio.Event()
        self._nothing_runs = asyncio.Event()
        self._paused = False
        self._broken: Exception | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="untail-engine")
        self._driver: asyncio.Task[None] | None = None

    async def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        def add() -> None:
            self.engine.add(spec)
            self._queues[spec.id] = asyncio.Queue()

        try:
            await self._control(add)
        except asyncio.CancelledError:
            self._forget(spec.id)
            raise
        async with aclosing(self.stream(spec.id)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        if name not in self._queues:
            raise SequenceStateError(f"sequence {name!r} has no stream here: unknown, or read to its end already")
        queue, over = self._queues[name], False
        try:
            while True:
                item = await queue.get()
                over = not isinstance(item, Chunk)
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
        finally:
            self._queues.pop(name, None)
            if not over:
                self._forget(name)

    async def extend(self, name: str, budget: int) -> None:
        await self._control(lambda: self.engine.extend(name, budget))

    async def append(self, name: str, tokens: list[int]) -> None:
        await self._control(lambda: self.engine.append(name, tokens))

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> list[str]:
        def fork() -> list[str]:
            children = self.engine.fork(name, streams, temperatures)
            # Here, on the engine's thread: the next step may already have chunks for them.
            self._queues.update((child, asyncio.Queue()) for child in children)
            return children

        return await self._control(fork)

    async def release(self, name: str) -> None:
        await self._control(lambda: self.engine.release(name))
        self._put(name, None)

    async def abort(self, names: list[str]) -> None:
        for name in names:
            self._put(name, await self._control(partial(self.engine.abort, name)))
            self._put(name, None)

    async def pause(self, mode: PauseMode) -> None:
        if mode == "abort":
            await self.abort(await self._control(self.engine.names))
        elif mode == "wait":
            await self._control(lambda: self.engine.admit_new(False))
            await self._nothing_runs.wait()
        elif mode != "keep":
            raise RequestError(f"pause mode {mode!r} is unknown; use keep, wait or abort")
        self._paused = True
        await self._control(lambda: self.engine.admit_new(True))

    async def resume(self) -> None:
        self._paused = False
        self._arrived.set()

    async def load_weights(self, source: Source, version: int) -> None:
        await self._control(lambda: self.engine.load_weights(source, version))

    async def sleep(self, level: int) -> None:
        if level != 1:
            raise RequestError(f"sleep level {level} is not supported; level 1 gives up the KV pool")
        await self.pause("keep")
        await self._control(self.engine.sleep)

    async def wake(self) -> None:
        await self._control(self.engine.wake)
        await self.resume()

    async def close(self) -> None:
        if self._broken is None:
            await self.pause("abort")
        if self._driver is not None:
            self._driver.cancel()
        self._thread.shutdown()

    async def _control(self, apply: Callable[[], Any]) -> Any:
        """Run `apply` on the engine's thread between two steps, and return or raise what it did."""
        control = self._submit(apply)
        return await control.done

    def _submit(self, apply: Callable[[], Any]) -> Control:
        if self._broken is not None:
            raise RuntimeError("the engine stopped after a fault; make a new one") from self._broken
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        control = Control(apply, asyncio.get_running_loop().create_future())
        self._controls.append(control)
        self._arrived.set()
        return control

    def _forget(self, name: str) -> None:
        """Abort a sequence whose consumer went away, without waiting; it may have ended by itself meanwhile."""

        def abort() -> None:
            with suppress(SequenceStateError):
                self.engine.abort(name)

        if self._broken is None:
            self._submit(abort)

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._controls and (self._paused or not self.engine.has_work):
                self._arrived.clear()
                await self._arrived.wait()
                continue
            controls, self._controls = self._controls, []
            stepping = not self._paused and not (self._deterministic and controls)
            try:
                turn = await loop.run_in_executor(self._thread, self._turn, controls, stepping)
            except Exception as error:  # a fault in the engine itself: nobody may be left waiting
                self._break(error, controls)
                return
            self._hand_out(turn)
            if self._deterministic:
                await self._settle()

    async def _settle(self) -> None:
        """Let consumers deal with their chunks, until they ask for something or nobody has for a while. A consumer may
        pass through a few turns of the loop (a semaphore, a task group) before it asks."""
        for _ in range(SETTLED_AFTER):
            if self._controls:
                break
            await asyncio.sleep(0)

    def _turn(self, controls: list[Control], stepping: bool) -> Turn:
        """On the engine's thread: apply the control, then take a step."""
        turn = Turn([], [])
        for control in controls:
            try:
                turn.outcomes.append((control.done, control.apply(), None))
            except Exception as error:  # whatever it is, it belongs to the caller of this control
                turn.outcomes.append((control.done, None, error))
        try:
            for name, chunk in self.engine.step() if stepping else ():
                turn.items.append((name, chunk))
                if not self.engine.is_alive(name):
                    turn.items.append((name, None))
        except StepFailed as failure:
            turn.items += [(name, failure) for name in failure.sequences]
        turn.in_flight = self.engine.in_flight
        return turn

    def _hand_out(self, turn: Turn) -> None:
        (self._nothing_runs.clear if turn.in_flight else self._nothing_runs.set)()
        for done, value, error in turn.outcomes:
            if done.done():  # its caller was cancelled meanwhile
                continue
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)
        for name, item in turn.items:
            self._put(name, item)

    def _break(self, error: Exception, controls: list[Control]) -> None:
        self._broken = error
        for control in controls + self._controls:
            if not control.done.done():
                control.done.set_exception(error)
        for name in list(self._queues):
            self._put(name, error)

    def _put(self, name: str, item: Item) -> None:
        """To the stream's consumer, if it is still there."""
        if name in self._queues:
            self._queues[name].put_nowait(item)
