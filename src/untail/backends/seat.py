"""Where an engine sits: whoever drives it sends orders and gets turns back.

Invariant: one thread owns the engine. A turn applies the orders in order, each with an outcome of its own, and then
takes a step, or several. Orders and turns can be pickled, so that the seat may be in another process. What an order
does to streams travels with its turn, and is done before the next order's outcome is heard: a name that one sets free
may be another sequence's by the next.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from untail.backends.base import Load
from untail.engine.engine import Engine, StepFailed
from untail.engine.weights import Source
from untail.errors import SequenceStateError
from untail.types import Chunk, Forked, SequenceSpec

Item = Chunk | Exception | None
"""What a stream carries; None closes it."""


@dataclass(frozen=True, slots=True)
class Order:
    """A method of `Seat`, and what it is called with."""

    method: str
    about: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one order."""

    value: Any
    error: Exception | None
    items: int  # how many of the turn's items there were by then


@dataclass
class Turn:
    """Each order's outcome, what each stream gets, what the steps took, and how the engine stands afterwards."""

    outcomes: list[Outcome] = field(default_factory=list)
    items: list[tuple[str, Item]] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)  # sequences if it only decoded, else 0; seconds a step
    has_work: bool = False
    in_flight: bool = False
    running: int = 0  # sequences that are being computed
    load: Load | None = None


class TakesTurns(Protocol):
    """A seat, from afar: what a driver needs of it."""

    async def turn(self, orders: list[Order], stepping: bool) -> Turn: ...

    def hurry(self) -> None:
        """An order waits: a turn of several steps should end early."""
        ...

    def idle(self) -> None:
        """Nothing will be asked of the engine for a while."""
        ...

    def close(self) -> None: ...


class Seat:
    def __init__(self, engine: Engine, latency: float | None = None):
        """`latency` is what a step takes where time is ours."""
        self.engine = engine
        self._latency = latency
        self._busy_s = 0.0
        self._tickets: dict[str, int] = {}  # by name: a sequence may be followed by another of the same name
        self._numbers = count(time.time_ns())  # no other seat, here or in a process that is gone, has given them

    def turn(self, orders: list[Order], stepping: bool, is_over: Callable[[Turn], bool] = lambda turn: True) -> Turn:
        """Apply the orders; then step until `is_over`, if there is anything to compute."""
        turn = Turn()
        for order in orders:
            value, failure = None, None
            try:
                value = getattr(self, order.method)(turn, *order.about)
            except Exception as error:  # whatever it is, it belongs to the caller of this order
                failure = error
            turn.outcomes.append(Outcome(value, failure, len(turn.items)))
        while stepping:
            self._step(turn)
            if not self.engine.has_work or is_over(turn):
                break
        turn.has_work, turn.in_flight, turn.load = self.engine.has_work, self.engine.in_flight, self.load()
        turn.running = len(self.engine.scheduler.running)
        return turn

    def idle(self) -> None:
        if self.engine.speculation is not None:
            self.engine.speculation.occupied(0)

    def load(self) -> Load:
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

    # ---- orders -----------------------------------------------------------------------------------------------

    def add(self, turn: Turn, spec: SequenceSpec) -> int:
        """Its ticket."""
        self.engine.add(spec)
        return self._ticket(spec.id)

    def extend(self, turn: Turn, name: str, budget: int) -> None:
        self.engine.extend(name, budget)

    def append(self, turn: Turn, name: str, tokens: list[int], budget: int | None) -> None:
        self.engine.append(name, tokens, budget)

    def fork(
        self, turn: Turn, name: str, streams: list[int], temperatures: list[float] | None
    ) -> tuple[Forked, list[int]]:
        """And the children's tickets."""
        forked, chunk = self.engine.fork(name, streams, temperatures)
        if chunk.tokens:
            turn.items.append((name, chunk))
        return forked, [self._ticket(child) for child in forked.children]

    def release(self, turn: Turn, name: str) -> None:
        self.engine.release(name)
        self._tickets.pop(name, None)
        turn.items.append((name, None))

    def cut(self, turn: Turn, names: list[str]) -> None:
        for name in names:
            with suppress(SequenceStateError):  # it came to its end or to a boundary meanwhile
                turn.items.append((name, self.engine.cut(name)))

    def abort(self, turn: Turn, names: list[str]) -> None:
        for name in names:
            with suppress(SequenceStateError):  # it came to its end meanwhile
                turn.items += [(name, self.engine.abort(name)), (name, None)]
                self._tickets.pop(name, None)

    def forget(self, turn: Turn, name: str, ticket: int) -> None:
        """Abort a sequence whose owner went away; it may have ended by itself, and the name be another's by now."""
        if self._tickets.get(name) == ticket:
            del self._tickets[name]
            with suppress(SequenceStateError):
                self.engine.abort(name)

    def admit_new(self, turn: Turn, admits: bool) -> None:
        self.engine.admit_new(admits)

    def pause(self, turn: Turn, abort: bool) -> None:
        self.engine.admit_new(True)
        self._bring(turn, self.engine.drain())  # who pauses may change the weights next
        if abort:
            self.abort(turn, self.engine.names())

    def load_weights(self, turn: Turn, source: Source, version: int) -> None:
        self._bring(turn, self.engine.drain())
        self.engine.load_weights(source, version)

    def sleep(self, turn: Turn) -> None:
        self._bring(turn, self.engine.drain())
        self.engine.sleep()

    def wake(self, turn: Turn) -> None:
        self.engine.wake()

    # -----------------------------------------------------------------------------------------------------------

    def _ticket(self, name: str) -> int:
        self._tickets[name] = ticket = next(self._numbers)
        return ticket

    def _step(self, turn: Turn) -> None:
        began, decoded, before = time.perf_counter(), 0, self.engine.counts.steps
        try:
            chunks = self.engine.step()
        except StepFailed as failure:
            turn.items += [(name, failure) for name in failure.sequences]
        else:
            decoded = self.engine.last_step.sequences if self.engine.last_step.decodes_only else 0
            self._bring(turn, chunks)
        seconds = self._latency or time.perf_counter() - began
        self._busy_s += seconds
        launched = max(1, self.engine.counts.steps - before)  # several, where the engine runs ahead
        turn.steps.append((decoded, seconds / launched))

    def _bring(self, turn: Turn, chunks: list[tuple[str, Chunk]]) -> None:
        for name, chunk in chunks:
            turn.items.append((name, chunk))
            if chunk.end is not None and not self.engine.is_alive(name):  # a launch may bring several of one sequence
                turn.items.append((name, None))
                self._tickets.pop(name, None)
