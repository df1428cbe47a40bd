"""The native engine behind the backend protocol.

Invariant: the engine sits where one thread owns it (backends/seat.py): in this process, or in another. Between two
steps it applies the orders that have arrived since, in order; then it takes one step, or a few; the event loop hands
the chunks to their streams. Nobody else touches the engine. What an order does to streams happens whether or not its
caller is still there; what a caller that is gone would have owned is aborted.

In deterministic mode the next step waits until consumers have dealt with their chunks and what they asked for is
applied: which sequences share a step then depends on nothing but the work itself. Time is the number of steps; it
stands still while somebody is inside `clock.frozen()`, and while the backend is paused; orders are applied even then.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from untail.backends.base import Capabilities, Clock, EngineLost, Load, LoopClock, PauseMode
from untail.backends.seat import Item, Order, Outcome, Seat, TakesTurns, Turn
from untail.backends.step_clock import StepClock
from untail.engine.engine import Engine
from untail.engine.step_times import StepTimes
from untail.errors import RequestError, SequenceStateError
from untail.types import Chunk, Forked, SequenceSpec

SETTLED_AFTER = 64  # turns of the event loop in which nobody asked for anything

Queue = asyncio.Queue[Item]


@dataclass
class Control:
    """An order on its way. `landed` hears of its result even if its caller is gone; `undo` is then for what the caller
    would have owned."""

    order: Order
    done: asyncio.Future[Any]
    landed: Callable[[Any], None] = lambda result: None
    undo: Callable[[Any], None] = lambda result: None


@dataclass(eq=False)
class Stream:
    """The chunks of one sequence. The ticket tells it from others of the same name."""

    ticket: int = 0
    queue: Queue = field(default_factory=asyncio.Queue)


class HereSeat:
    """A seat in this process, on a thread of its own."""

    def __init__(self, seat: Seat):
        self._seat = seat
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="untail-engine")

    async def turn(self, orders: list[Order], stepping: bool) -> Turn:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._seat.turn, orders, stepping)

    def hurry(self) -> None:
        """A turn has one step."""

    def idle(self) -> None:
        self._seat.idle()

    def close(self) -> None:
        self._thread.shutdown()


class SeatedBackend:
    """An engine wherever it sits."""

    capabilities = Capabilities(entropy="exact", fork="cow", hidden=True, draft=True)

    def __init__(self, seat: TakesTurns, load: Load, clock: StepClock | None = None):
        """`load` is how the engine stands now."""
        self._seat = seat
        self._load = load
        self._before: Load | None = None  # of engines that sat here and are lost
        self._step_clock = clock
        if clock is not None:
            clock.on_change = self._stir
        self.clock: Clock = clock or LoopClock()
        self._times = StepTimes()
        self._has_work = False
        self._streams: dict[str, Stream] = {}
        self._controls: list[Control] = []
        self._arrived = asyncio.Event()
        self._nothing_runs = asyncio.Event()
        self._paused = False
        self._broken: Exception | None = None
        self._driver: asyncio.Task[None] | None = None

    async def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        stream = Stream()

        def add(ticket: int) -> None:
            stream.ticket = ticket
            self._streams[spec.id] = stream

        forget = lambda ticket: self._forget(spec.id, stream)
        await self._control(Order("add", (spec,)), add, forget)
        async with aclosing(self._read(spec.id, stream)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        if name not in self._streams:
            raise SequenceStateError(f"sequence {name!r} has no stream here: unknown, or read to its end already")
        async with aclosing(self._read(name, self._streams[name])) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _read(self, name: str, stream: Stream) -> AsyncGenerator[Chunk, None]:
        over = False
        try:
            while True:
                item = await stream.queue.get()
                over = not isinstance(item, Chunk)
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
        finally:
            if over:
                self._close(name, stream)
            else:
                self._forget(name, stream)

    async def extend(self, name: str, budget: int) -> None:
        await self._control(Order("extend", (name, budget)))

    async def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        await self._control(Order("append", (name, tokens, budget)))

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> Forked:
        made: dict[str, Stream] = {}

        def add(result: tuple[Forked, list[int]]) -> None:
            forked, tickets = result
            made.update((child, Stream(ticket)) for child, ticket in zip(forked.children, tickets, strict=True))
            self._streams.update(made)

        def undo(result: tuple[Forked, list[int]]) -> None:
            for child, stream in made.items():
                self._forget(child, stream)

        forked: Forked
        forked, _ = await self._control(Order("fork", (name, streams, temperatures)), add, undo)
        return forked

    async def release(self, name: str) -> None:
        await self._control(Order("release", (name,)))

    async def cut(self, names: list[str]) -> None:
        await self._control(Order("cut", (names,)))

    async def abort(self, names: list[str]) -> None:
        await self._control(Order("abort", (names,)))

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
        await self._control(Order("pause", (mode == "abort",)))  # after the step under way

    async def resume(self) -> None:
        self._paused = False
        self._arrived.set()

    async def load_weights(self, source: Any, version: int) -> None:
        await self._control(Order("load_weights", (source, version)))

    async def sleep(self, level: int) -> None:
        if level != 1:
            raise RequestError(f"sleep level {level} is not supported; level 1 gives up the KV pool")
        await self.pause("keep")
        await self._control(Order("sleep"))

    async def wake(self) -> None:
        await self._control(Order("wake"))
        await self.resume()

    async def close(self) -> None:
        if self._broken is None:
            with suppress(EngineLost):
                await self.pause("abort")
            self._break(RuntimeError("the backend is closed"), [])
        if self._driver is not None:
            self._driver.cancel()
        self._seat.close()

    def revive(self, load: Load) -> None:
        """Another engine sits where one was lost; it has no sequences. What is counted goes on from where it was."""
        assert isinstance(self._broken, EngineLost), "only an engine that is gone can be replaced"
        self._before = self._load
        self._load = _sum_of(self._before, load)
        self._streams, self._controls, self._has_work, self._paused = {}, [], False, False
        self._broken = self._driver = None

    async def _let_what_runs_end(self) -> None:
        try:
            await self._control(Order("admit_new", (False,)))
            await self._nothing_runs.wait()
        except asyncio.CancelledError:
            if self._broken is None:
                self._mention(Order("admit_new", (True,)))
            raise

    async def _control(
        self,
        order: Order,
        landed: Callable[[Any], None] = lambda result: None,
        undo: Callable[[Any], None] = lambda result: None,
    ) -> Any:
        """Have the engine do it between two steps, and return or raise what it did."""
        control = Control(order, asyncio.get_running_loop().create_future(), landed, undo)
        self._submit(control)
        return await control.done

    def _mention(self, order: Order) -> None:
        """Nobody waits for what comes of it."""
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._submit(Control(order, done))

    def _submit(self, control: Control) -> None:
        if self._broken is not None:
            raise self._gone(self._broken) from self._broken
        self._controls.append(control)
        self._stir()

    def _stir(self) -> None:
        """Something for the driver to look at."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        self._arrived.set()
        self._seat.hurry()

    def _forget(self, name: str, stream: Stream) -> None:
        """Abort a sequence whose owner went away, without waiting; it may have ended by itself meanwhile."""
        self._close(name, stream)
        if self._broken is None:
            self._mention(Order("forget", (name, stream.ticket)))

    def _close(self, name: str, stream: Stream) -> None:
        """The name may belong to a newer sequence by now."""
        if self._streams.get(name) is stream:
            del self._streams[name]

    async def _drive(self) -> None:
        while self._broken is None:
            await (self._go_on() if self._step_clock is None else self._go_on_in_order(self._step_clock))

    async def _go_on(self) -> None:
        controls, self._controls = self._controls, []
        if controls or (self._has_work and not self._paused):
            await self._take_turn(controls, stepping=not self._paused)
        else:
            if not self._paused:
                self._seat.idle()
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
        elif self._has_work:
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
        controls = [control for control in controls if not control.done.cancelled()]
        try:
            turn = await self._seat.turn([control.order for control in controls], stepping)
        except Exception as error:  # a fault in the engine itself, or it is gone: nobody may be left waiting
            self._break(error, controls)
        else:
            self._hand_out(turn, controls)

    def _hand_out(self, turn: Turn, controls: list[Control]) -> None:
        self._has_work = turn.has_work
        (self._nothing_runs.clear if turn.in_flight else self._nothing_runs.set)()
        assert turn.load is not None
        self._load = _sum_of(self._before, turn.load) if self._before else turn.load
        for decoded, seconds in turn.steps:
            if decoded:
                self._times.record(decoded, seconds)
        given = 0
        for control, outcome in zip(controls, turn.outcomes, strict=True):
            self._give(turn.items[given : outcome.items])
            given = outcome.items
            self._land(control, outcome)
        self._give(turn.items[given:])

    def _give(self, items: list[tuple[str, Item]]) -> None:
        for name, item in items:
            if name in self._streams:
                self._streams[name].queue.put_nowait(item)

    @staticmethod
    def _land(control: Control, outcome: Outcome) -> None:
        if outcome.error is None:
            control.landed(outcome.value)
        if control.done.done():  # its caller was cancelled meanwhile
            if outcome.error is None:
                control.undo(outcome.value)
        elif outcome.error is None:
            control.done.set_result(outcome.value)
        else:
            control.done.set_exception(outcome.error)

    def _break(self, error: Exception, controls: list[Control]) -> None:
        """No more work is taken; everybody who waits hears why."""
        self._broken = error
        self._nothing_runs.set()
        if self._step_clock is not None:
            self._step_clock.stop(error)
        for control in controls + self._controls:
            if not control.done.done():
                control.done.set_exception(error)
        for stream in self._streams.values():
            stream.queue.put_nowait(error)

    def _gone(self, why: Exception) -> Exception:
        if isinstance(why, EngineLost):
            return EngineLost(str(why))
        return RuntimeError(f"this backend takes no more work ({why}); make a new one")


class NativeBackend(SeatedBackend):
    """An engine in this process."""

    def __init__(self, engine: Engine, deterministic: bool = False):
        self.engine = engine
        clock = StepClock() if deterministic else None
        seat = Seat(engine, clock.latency if clock else None)
        super().__init__(HereSeat(seat), seat.load(), clock)


def _sum_of(before: Load, now: Load) -> Load:
    """The counts of both; the pool is that of the one that is here."""
    drafts = {
        name: {key: count + before.drafts.get(name, {}).get(key, 0) for key, count in counts.items()}
        for name, counts in now.drafts.items()
    }
    counted = ("busy_s", "computed", "sampled", "recomputed", "preemptions", "overrun")
    counts = {name: getattr(before, name) + getattr(now, name) for name in counted}
    return replace(now, drafts=drafts, **counts)
