"""One sequence of one engine, between the controller and the engine's stream.

Invariant: everything that the stream yields reaches the inbox in order, and so does its failure. At a boundary the pump
waits to be told how to go on.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from untail.backends.base import Backend
from untail.types import Chunk, End, SequenceSpec


class Pump:
    def __init__(self, backend: Backend, spec: SequenceSpec, put: Callable[[Chunk | Exception], None]):
        self.backend = backend
        self.name = spec.id
        self._put = put
        self._orders: asyncio.Queue[int | None] = asyncio.Queue()
        self._abort: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(spec))

    def extend(self, budget: int) -> None:
        """Pre: at a boundary."""
        self._orders.put_nowait(budget)

    def release(self) -> None:
        """Pre: at a boundary."""
        self._orders.put_nowait(None)

    def abort(self) -> None:
        """The chunk that says how it ended is still to come."""
        self._orders.put_nowait(0)  # should it come to a boundary first, it only reads on
        self._abort = asyncio.create_task(self._try_to_abort())

    def fail(self, error: Exception) -> None:
        """Its engine cannot be told what to do with it: once its stream is closed, nothing is heard of it but this."""
        self._task.add_done_callback(lambda task: self._put(error))
        self._task.cancel()

    async def done(self) -> None:
        """Nothing more comes from it."""
        await asyncio.gather(self._task, *([self._abort] if self._abort else []), return_exceptions=True)

    async def close(self) -> None:
        """Wherever it is; its sequence is aborted."""
        self._task.cancel()
        await asyncio.gather(self._task, *([self._abort] if self._abort else []), return_exceptions=True)

    async def _try_to_abort(self) -> None:
        try:
            await self.backend.abort([self.name])
        except Exception as error:
            self.fail(error)

    async def _run(self, spec: SequenceSpec) -> None:
        end: End | None = None
        try:
            async with aclosing(self.backend.generate(spec)) as chunks:
                async for chunk in chunks:
                    end = chunk.end
                    if end == "abort" and self._abort is None:
                        break
                    self._put(chunk)
                    if end == "boundary" and not await self._goes_on():
                        return
            if end not in ("stop", "length") and self._abort is None:
                self._put(RuntimeError(f"the engine ended sequence {self.name!r} by itself"))
        except Exception as error:  # it belongs to this sequence alone: the controller contains it
            self._put(error)

    async def _goes_on(self) -> bool:
        budget = await self._orders.get()
        if budget is None:
            await self.backend.release(self.name)
            return False
        if budget:
            await self.backend.extend(self.name, budget)
        return True
