"""The clock of deterministic mode: steps taken times a fixed latency.

Invariant: time moves only when the driver says so: by one latency for each step, or to the earliest sleeper when there
is nothing to compute. While somebody is inside `frozen()` the driver moves nothing. Whoever is done there waits for all
the others who are, and for everybody else to settle; then they leave in the order in which they entered. So time, and
the order of what happens in it, depend on the work alone, not on how long anything really took.
"""

import asyncio
import math
from bisect import insort
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import NamedTuple

LATENCY = 0.01


@dataclass(eq=False)
class Stay:
    """Somebody's stay inside `frozen()`."""

    finished: bool = False
    may_leave: asyncio.Event = field(default_factory=asyncio.Event)


class Sleeper(NamedTuple):
    until: float
    number: int  # who asked first wakes first
    waker: asyncio.Future[None]


class StepClock:
    def __init__(self, latency: float = LATENCY, on_change: Callable[[], None] = lambda: None):
        """`on_change` hears of all that may matter to the driver: somebody sleeps, or is done inside `frozen()`."""
        self.latency = latency
        self.on_change = on_change
        self._since = 0.0  # when time last jumped
        self._steps = 0  # since then
        self._sleepers: list[Sleeper] = []  # earliest first
        self._numbers = count()
        self._inside: list[Stay] = []  # in the order in which they entered
        self._stopped: Exception | None = None

    def now(self) -> float:
        return self._since + self._steps * self.latency

    async def sleep(self, seconds: float) -> None:
        if self._stopped is not None:
            raise RuntimeError(f"this clock has stopped ({self._stopped})") from self._stopped
        if seconds <= 0:
            return await asyncio.sleep(0)
        waker = asyncio.get_running_loop().create_future()
        sleeper = Sleeper(self.now() + seconds, next(self._numbers), waker)
        insort(self._sleepers, sleeper)
        self.on_change()
        try:
            await waker
        finally:
            if sleeper in self._sleepers:  # it was cancelled
                self._sleepers.remove(sleeper)

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        stay = Stay()
        self._inside.append(stay)
        try:
            yield
            await self._finish(stay)
        except Exception:  # what comes of a failure has its place in the order too
            await self._finish(stay)
            raise
        finally:  # at once, if it was cancelled
            self._inside.remove(stay)
            self.on_change()

    async def _finish(self, stay: Stay) -> None:
        stay.finished = True
        self.on_change()
        if self._stopped is None:
            await stay.may_leave.wait()

    @property
    def is_frozen(self) -> bool:
        return bool(self._inside)

    async def thaw(self) -> bool:
        """Everybody has settled: those inside leave, each in a turn of the event loop of its own. False if somebody is
        not done yet."""
        if not all(stay.finished for stay in self._inside):
            return False
        for stay in tuple(self._inside):
            stay.may_leave.set()
            await asyncio.sleep(0)
        return True

    def step(self) -> None:
        """One step was taken."""
        self._steps += 1
        self._wake()

    def skip(self) -> bool:
        """Nothing is left to compute: on to the earliest sleeper. False if nobody waits for a time that will come."""
        until = min((sleeper.until for sleeper in self._sleepers if not sleeper.waker.done()), default=math.inf)
        if until == math.inf:
            return False
        self._since, self._steps = until, 0
        self._wake()
        return True

    def stop(self, error: Exception) -> None:
        """No time will come any more; everybody who waits for it hears why. Who is inside `frozen()` may leave."""
        self._stopped = error
        for sleeper in self._sleepers:
            if not sleeper.waker.done():
                sleeper.waker.set_exception(error)
        for stay in self._inside:
            stay.may_leave.set()

    def _wake(self) -> None:
        due = list(takewhile(lambda sleeper: sleeper.until <= self.now(), self._sleepers))
        del self._sleepers[: len(due)]
        for sleeper in due:
            if not sleeper.waker.done():
                sleeper.waker.set_result(None)
