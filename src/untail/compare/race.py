"""Several trainings in turn, a step each.

Invariant: all of them are alive at once and each does one step in a round, the first to go changing from round to
round, so that a loaded moment of the machine hits all of them alike. One that is refused and may be is out; the others
go on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from untail.errors import UserError


class Contender(Protocol):
    """A training that is driven from outside. What it takes to begin is loaded; nothing is written yet."""

    async def begin(self) -> None: ...

    async def one_step(self) -> bool:
        """False: there was none left."""
        ...

    async def end(self) -> None: ...

    async def close(self) -> None: ...


class Lane:
    """One contender, until it is over or out. `error` says why it is out."""

    def __init__(self, load: Callable[[], Contender], may_fail: bool):
        self.error: str | None = None
        self.goes_on = True
        self._load = load
        self._may_fail = may_fail
        self._contender: Contender | None = None

    def load(self) -> None:
        with self._contained():
            self._contender = self._load()

    async def begin(self) -> None:
        if self._contender and not self.error:
            with self._contained():
                await self._contender.begin()

    async def one_step(self) -> None:
        if self._contender and self.goes_on:
            with self._contained():
                self.goes_on = await self._contender.one_step()

    async def end(self) -> None:
        if self._contender and not self.error:
            with self._contained():
                await self._contender.end()

    async def close(self) -> None:
        if self._contender:
            await self._contender.close()

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if not self._may_fail:
                raise
            self.error, self.goes_on = str(error), False


async def race(lanes: Sequence[Lane]) -> None:
    """All of them from the first step to the last. Everything is loaded before anybody begins."""
    try:
        for lane in lanes:
            lane.load()
        for lane in lanes:
            await lane.begin()
        first = 0
        while any(lane.goes_on for lane in lanes):
            for lane in (*lanes[first:], *lanes[:first]):
                await lane.one_step()
            first = (first + 1) % len(lanes)
        for lane in lanes:
            await lane.end()
    finally:
        for lane in lanes:
            await lane.close()
