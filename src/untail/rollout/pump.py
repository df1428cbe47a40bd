"""One sequence of one engine, between the controller and the engine's stream.

Invariant: everything that the stream yields reaches the inbox in order, and so does its failure. At a boundary, and
after a turn that is held, the pump waits to be told how to go on, and does what it is told in that order: a copy is
made before its parent goes on or goes.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from untail.backends.base import Backend
from untail.types import Chunk, End, SequenceSpec

Name = asyncio.Future[str]
"""What an engine will call the child of a fork."""


@dataclass(frozen=True, slots=True)
class Fork:
    """One child per name."""

    streams: list[int]
    temperatures: list[float]
    names: list[Name]


Order = tuple[list[int], int] | Fork | None
"""A reply, empty at a boundary, and how many tokens to go on for (0: only read on); copies; None: no further."""


class Pump:
    def __init__(
        self, backend: Backend, source: SequenceSpec | Name, put: Callable[[Chunk | Exception], None], hold: bool
    ):
        """A new sequence, or the child of a fork, which begins at a boundary. `hold`: it stays after a turn."""
        self.backend = backend
        self._put = put
        self._hold = hold
        self._name = _known(source.id) if isinstance(source, SequenceSpec) else source
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._abort: asyncio.Task[None] | None = None
        self._released = False
        self._reads = False
        self._task = asyncio.create_task(self._run(source))

    def extend(self, budget: int, reply: list[int]) -> None:
        """Pre: at a boundary, or with a reply after a turn that is held."""
        self._orders.put_nowait((reply, budget))

    def release(self) -> None:
        """Pre: at a boundary, or after a turn that is held."""
        self._orders.put_nowait(None)

    def fork(self, streams: list[int], temperatures: list[float]) -> list[Name]:
        """Children that go on where it stands. Pre: at a boundary."""
        names: list[Name] = [asyncio.get_running_loop().create_future() for _ in streams]
        self._orders.put_nowait(Fork(streams, temperatures, names))
        return names

    def abort(self) -> None:
        """The chunk that says how it ended is still to come."""
        self._orders.put_nowait(([], 0))  # should it come to a boundary first, it only reads on
        self._abort = asyncio.create_task(self._try_to_abort())

    def fail(self, error: Exception) -> None:
        """Its engine cannot be told what to do with it: once its stream is closed, nothing is heard of it but this."""
        self._task.add_done_callback(lambda task: self._put(error))
        self._task.cancel()

    async def name(self) -> str:
        """What its engine calls it."""
        return await asyncio.shield(self._name)

    async def done(self) -> None:
        """Nothing more comes from it."""
        await asyncio.gather(self._task, *([self._abort] if self._abort else []), return_exceptions=True)

    async def cancel(self) -> None:
        """Wherever it is: nothing is read any more."""
        self._task.cancel()
        await self.done()

    async def close(self) -> None:
        """The same, and its sequence is aborted, also that of a child which nobody has read yet."""
        await self.cancel()
        if not self._reads and self._name.done() and self._name.exception() is None:
            await self.backend.abort([self._name.result()])

    async def _try_to_abort(self) -> None:
        try:
            await self.backend.abort([await self.name()])
        except Exception as error:
            self.fail(error)

    async def _run(self, source: SequenceSpec | Name) -> None:
        try:
            if isinstance(source, SequenceSpec):
                await self._read(self.backend.generate(source))
            else:
                name = await self.name()
                await self._goes_on()
                await self._read(self.backend.stream(name))
        except Exception as error:  # it belongs to this sequence alone: the controller contains it
            self._put(error)

    async def _read(self, stream: AsyncGenerator[Chunk, None]) -> None:
        end: End | None = None
        self._reads = True
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                end = chunk.end
                if end == "abort" and self._abort is None:
                    break
                self._put(chunk)
                waits = end == "boundary" or (end == "stop" and self._hold)
                if waits and not await self._goes_on():
                    return
        if end not in ("stop", "length") and self._abort is None and not self._released:
            self._put(RuntimeError(f"the engine ended sequence {await self.name()!r} by itself"))

    async def _goes_on(self) -> bool:
        name = await self.name()
        order = await self._orders.get()
        while isinstance(order, Fork):
            await self._make_children(name, order)
            order = await self._orders.get()
        if order is None:
            self._released = True
            await self.backend.release(name)
            return False
        reply, budget = order
        if reply:
            await self.backend.append(name, reply, budget)
        elif budget:
            await self.backend.extend(name, budget)
        return True

    async def _make_children(self, name: str, order: Fork) -> None:
        """A fork that fails costs the children, and not the parent."""
        try:
            children = (await self.backend.fork(name, order.streams, order.temperatures)).children
        except Exception as error:
            for future in order.names:
                future.set_exception(error)
        else:
            for future, child in zip(order.names, children, strict=True):
                future.set_result(child)


def _known(name: str) -> Name:
    future: Name = asyncio.get_running_loop().create_future()
    future.set_result(name)
    return future
