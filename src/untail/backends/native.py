"""The native engine behind the backend protocol.

Invariant: one worker thread owns the engine. Between two steps it applies the control that has arrived since, in order;
then it takes one step; the event loop hands the chunks to their streams. Nobody else touches the engine. What a control
does to streams travels with its turn, so that it happens whether or not the caller is still there; what a caller that
is gone would have owned is aborted.

In deterministic mode the next step waits until consumers have dealt with their chunks and what they asked for is
applied: which sequences share a step then depends on nothing but the work itself. Time is the number of steps; it
stands still while somebody is inside `clock.frozen()`, and while the backend is paused; control is applied even then.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from untail.backends.base import Capabilities, Clock, Load, LoopClock, PauseMode
from untail.backends.step_clock import StepClock
from untail.engine.engine import Engine, StepFailed
from untail.engine.step_times import StepTimes
from untail.engine.weights import Source
from untail.errors import RequestError, SequenceStateError
from untail.types import Chunk, Forked, SequenceSpec

SETTLED_AFTER = 64  # turns of the event loop in which nobody asked for anything

Item = Chunk | Exception | None
"""What a stream's queue carries; None closes it."""
Queue = asyncio.Queue[Item]


@dataclass
class Turn:
    """What the worker thread brings back: each control's outcome, what each stream gets, and what its step took."""

    outcomes: list[tuple["Control", Any, Exception | None]] = field(default_factory=list)
    items: list[tuple[str, Item]] = field(default_factory=list)
    in_flight: bool = False
    seconds: float = 0.0
    decoded: int = 0  # sequences in the step, if it did nothing but decode
    steps: int = 1  # of a launch, where the engine runs ahead


@dataclass
class Control:
    apply: Callable[[Turn], Any]
    done: asyncio.Future[Any]
    undo: Callable[[Any], None] | None  # for a result that nobody is there to take


class NativeBackend:
    capabilities = Capabilities(entropy="exact", fork="cow", hidden=True, draft=True)

    def __init__(self, engine: Engine, deterministic: bool = False):
        self.engine = engine
        self._step_clock = StepClock(on_change=self._stir) if deterministic else None
        self.clock: Clock = self._step_clock or LoopClock()
        self._times = StepTimes()
        self._busy_s = 0.0
        self._load = self._measure()
        self._queues: dict[str, Queue] = {}
        self._controls: list[Control] = []
        self._arrived = asyncio.Event()
        self._nothing_runs = asyncio.Event()
        self._paused = False
        self._broken: Exception | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="untail-engine")
        self._driver: asyncio.Task[None] | None = None

    async def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        queue: Queue = asyncio.Queue()

        def add(turn: Turn) -> None:
            self.engine.add(spec)
            self._queues[spec.id] = queue

        await self._control(add, undo=lambda _: self._forget(spec.id, queue))
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
            if over:
                self._close_queue(name, queue)
            else:
                self._forget(name, queue)

    async def extend(self, name: str, budget: int) -> None:
        await self._control(lambda turn: self.engine.extend(name, budget))

    async def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        await self._control(lambda turn: self.engine.append(name, tokens, budget))

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> Forked:
        queues: dict[str, Queue] = {}

        def fork(turn: Turn) -> Forked:
            forked, chunk = self.engine.fork(name, streams, temperatures)
            if chunk.tokens:
                turn.items.append((name, chunk))
            # Here, on the engine's thread: the next step may already have chunks for them.
            queues.update((child, asyncio.Queue()) for child in forked.children)
            self._queues.update(queues)
            return forked

        def undo(forked: Forked) -> None:
            for child in forked.children:
                self._forget(child, queues[child])

        return await self._control(fork, undo)

    async def release(self, name: str) -> None:
        def release(turn: Turn) -> None:
            self.engine.release(name)
            turn.items.append((name, None))

        await self._control(release)

    async def cut(self, names: list[str]) -> None:
        def cut(turn: Turn) -> None:
            for name in names:
                with suppress(SequenceStateError):  # it came to its end or to a boundary meanwhile
                    turn.items.append((name, self.engine.cut(name)))

        await self._control(cut)

    async def abort(self, names: list[str]) -> None:
        await self._control(lambda turn: self._abort(turn, names))

    def load(self) -> Load:
        return self._load

    def step_seconds(self, batch: int) -> float:
        return self._step_clock.latency if self._step_clock else self._times.estimate(batch)

    async def pause(self, mode: PauseMode) -> None:
        if mode not in ("keep", "wait", "abort"):
            raise RequestError(f"pause mode {mode!r} is unknown; use keep, wait or abort")
        if mode == "wait":
            await self._let_what_runs_end()
        self._paused = True

        def after_the_step_under_way(turn: Turn) -> None:
            self.engine.admit_new(True)
            self._bring(turn, self.engine.drain())  # who pauses may change the weights next
            if mode == "abort":
                self._abort(turn, self.engine.names())

        await self._control(after_the_step_under_way)

    async def resume(self) -> None:
        self._paused = False
        self._arrived.set()

    async def load_weights(self, source: Source, version: int) -> None:
        await self._control(lambda turn: self.engine.load_weights(source, version))

    async def sleep(self, level: int) -> None:
        if level != 1:
            raise RequestError(f"sleep level {level} is not supported; level 1 gives up the KV pool")
        await self.pause("keep")
        await self._control(lambda turn: self.engine.sleep())

    async def wake(self) -> None:
        await self._control(lambda turn: self.engine.wake())
        await self.resume()

    async def close(self) -> None:
        if self._broken is None:
            await self.pause("abort")
            self._break(RuntimeError("the backend is closed"), [])
        if self._driver is not None:
            self._driver.cancel()
        self._thread.shutdown()

    async def _let_what_runs_end(self) -> None:
        try:
            await self._control(lambda turn: self.engine.admit_new(False))
            await self._nothing_runs.wait()
        except asyncio.CancelledError:
            if self._broken is None:
                self._submit(lambda turn: self.engine.admit_new(True))
            raise

    def _abort(self, turn: Turn, names: list[str]) -> None:
        for name in names:
            with suppress(SequenceStateError):  # it came to its end meanwhile
                turn.items += [(name, self.engine.abort(name)), (name, None)]

    async def _control(self, apply: Callable[[Turn], Any], undo: Callable[[Any], None] | None = None) -> Any:
        """Run `apply` on the engine's thread between two steps, and return or raise what it did."""
        return await self._submit(apply, undo).done

    def _submit(self, apply: Callable[[Turn], Any], undo: Callable[[Any], None] | None = None) -> Control:
        if self._broken is not None:
            raise RuntimeError(f"this backend takes no more work ({self._broken}); make a new one") from self._broken
        control = Control(apply, asyncio.get_running_loop().create_future(), undo)
        self._controls.append(control)
        self._stir()
        return control

    def _stir(self) -> None:
        """Something for the driver to look at."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        self._arrived.set()

    def _forget(self, name: str, queue: Queue) -> None:
        """Abort a sequence whose owner went away, without waiting; it may have ended by itself meanwhile."""

        def abort(turn: Turn) -> None:
            if self._queues.get(name) is queue:
                del self._queues[name]
                with suppress(SequenceStateError):
                    self.engine.abort(name)

        if self._broken is None:
            self._submit(abort)

    def _close_queue(self, name: str, queue: Queue) -> None:
        """The name may belong to a newer sequence by now."""
        if self._queues.get(name) is queue:
            del self._queues[name]

    async def _drive(self) -> None:
        while self._broken is None:
            await (self._go_on() if self._step_clock is None else self._go_on_in_order(self._step_clock))

    async def _go_on(self) -> None:
        controls, self._controls = self._controls, []
        if controls or (self.engine.has_work and not self._paused):
            await self._take_turn(controls, stepping=not self._paused)
        else:
            if self.engine.speculation is not None and not self._paused:
                self.engine.speculation.occupied(0)
            await self._something_new()

    async def _go_on_in_order(self, clock: StepClock) -> None:
        await self._settle()
        if self._controls:
            controls, self._controls = self._controls, []
            await self._take_turn(controls, stepping=False)
        elif clock.is_frozen:
            if not await clock.thaw():
                await self._something_new()
        elif self._paused:
            await self._something_new()
        elif self.engine.has_work:
            await self._take_turn([], stepping=True)
            clock.step()  # nobody has seen the step's chunks yet
        elif not clock.skip():
            await self._something_new()

    async def _something_new(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    async def _settle(self) -> None:
        """Let consumers deal with their chunks, until nobody has asked for anything for a while. A consumer may pass
        through a few turns of the loop (a semaphore, a task group) before it asks."""
        quiet = 0
        while quiet < SETTLED_AFTER:
            self._arrived.clear()
            await asyncio.sleep(0)
            quiet = 0 if self._arrived.is_set() else quiet + 1

    async def _take_turn(self, controls: list[Control], stepping: bool) -> None:
        try:
            turn = await asyncio.get_running_loop().run_in_executor(self._thread, self._turn, controls, stepping)
        except Exception as error:  # a fault in the engine itself: nobody may be left waiting
            self._break(error, controls)
        else:
            self._hand_out(turn)

    def _turn(self, controls: list[Control], stepping: bool) -> Turn:
        """On the engine's thread: apply the control, then take a step."""
        turn = Turn()
        for control in controls:
            if control.done.cancelled():
                continue
            try:
                turn.outcomes.append((control, control.apply(turn), None))
            except Exception as error:  # whatever it is, it belongs to the caller of this control
                turn.outcomes.append((control, None, error))
        if stepping:
            self._step(turn)
        turn.in_flight = self.engine.in_flight
        return turn

    def _step(self, turn: Turn) -> None:
        began, before = time.perf_counter(), self.engine.counts.steps
        try:
            chunks = self.engine.step()
        except StepFailed as failure:
            turn.items += [(name, failure) for name in failure.sequences]
        else:
            turn.decoded = self.engine.last_step.sequences if self.engine.last_step.decodes_only else 0
            turn.steps = max(1, self.engine.counts.steps - before)
            self._bring(turn, chunks)
        turn.seconds = self._step_clock.latency if self._step_clock else time.perf_counter() - began

    def _bring(self, turn: Turn, chunks: list[tuple[str, Chunk]]) -> None:
        for name, chunk in chunks:
            turn.items.append((name, chunk))
            if chunk.end is not None and not self.engine.is_alive(name):  # a launch may bring several of one sequence
                turn.items.append((name, None))

    def _measure(self) -> Load:
        pool, counts = self.engine.pool, self.engine.counts
        return Load(
            kv_used=(pool.total - pool.free) / pool.total,
            busy_s=self._busy_s,
            computed=counts.computed,
            sampled=counts.sampled,
            recomputed=counts.recomputed_after_eviction,
            preemptions=counts.preemptions,
            overrun=counts.overrun,
            drafts=self.engine.speculation.figures() if self.engine.speculation else {},
        )

    def _hand_out(self, turn: Turn) -> None:
        (self._nothing_runs.clear if turn.in_flight else self._nothing_runs.set)()
        self._busy_s += turn.seconds
        self._load = self._measure()
        if turn.decoded:
            self._times.record(turn.decoded, turn.seconds / turn.steps)
        for control, value, error in turn.outcomes:
            if control.done.done():  # its caller was cancelled meanwhile
                if error is None and control.undo is not None:
                    control.undo(value)
            elif error is None:
                control.done.set_result(value)
            else:
                control.done.set_exception(error)
        for name, item in turn.items:
            if name in self._queues:
                self._queues[name].put_nowait(item)

    def _break(self, error: Exception, controls: list[Control]) -> None:
        """No more work is taken; everybody who waits hears why."""
        self._broken = error
        self._nothing_runs.set()
        if self._step_clock is not None:
            self._step_clock.stop(error)
        for control in controls + self._controls:
            if not control.done.done():
                control.done.set_exception(error)
        for queue in self._queues.values():
            queue.put_nowait(error)
