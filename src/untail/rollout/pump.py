"""One sequence of one engine, between the controller and the engine's stream.

Invariant: everything that the stream yields reaches the inbox in order, and so does its failure. At a boundary, and
after a turn that is held, the pump waits to be told how to go on.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from untail.backends.base import Backend
from untail.types import Chunk, End, SequenceSpec

Order = tuple[list[int], int] | None
"""A reply, empty at a boundary, and how many tokens to go on for (0: only read on); None: no further."""


class Pump:
    def __init__(self, backend: Backend, spec: SequenceSpec, put: Callable[[Chunk | Exception], None]):
        self.backend = backend
        self.name = spec.id
        self._put = put
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        self._abort: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(spec))

    def extend(self, budget: int, reply: list[int]) -> None:
        """Pre: at a boundary, or with a reply after a turn that is held."""
        self._orders.put_nowait((reply, budget))

    def release(self) -> None:
        """Pre: at a boundary, or after a turn that is held."""
        self._orders.put_nowait(None)

    def abort(self) -> None:
        """The chunk that says how it ended is still to come."""
        self._orders.put_nowait(([], 0))  # should it come to a boundary first, it only reads on
        self._abort = asyncio.create_task(self.backend.abort([self.name]))

    async def done(self) -> None:
        """Nothing more comes from it."""
        await asyncio.gather(self._task, *([self._abort] if self._abort else []))

    async def close(self) -> None:
        """Wherever it is; its sequence is aborted."""
        self._task.cancel()
        await asyncio.gather(self._task, *([self._abort] if self._abort else []), return_exceptions=True)

    async def _run(self, spec: SequenceSpec) -> None:
        end: End | None = None
        try:
            async with aclosing(self.backend.generate(spec)) as chunks:
                async for chunk in chunks:
                    end = chunk.end
                    if end == "abort" and self._abort is None:
                        break
                    self._put(chunk)
                    waits = end == "boundary" or (end == "stop" and spec.hold)
                    if waits and not await self._goes_on():
                        return
            if end not in ("stop", "length") and self._abort is None:
                self._put(RuntimeError(f"the engine ended sequence {self.name!r} by itself"))
        except Exception as error:  # it belongs to this sequence alone: the controller contains it
            self._put(error)

    async def _goes_on(self) -> bool:
        order = await self._orders.get()
        if order is None:
            await self.backend.release(self.name)
            return False
        reply, budget = order
        if reply:
            await self.backend.append(self.name, reply, budget)
        elif budget:
            await self.backend.extend(self.name, budget)
        return True
