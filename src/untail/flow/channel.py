"""A queue between roles: what one puts, the other gets, in order, until it is closed.

Invariant: nothing put before `close` is lost, and a failure of the producer reaches the consumer.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Closed:
    def __init__(self, error: BaseException | None):
        self.error = error


class Channel(Generic[T]):
    def __init__(self) -> None:
        self._queue: asyncio.Queue[T | _Closed] = asyncio.Queue()

    def put(self, item: T) -> None:
        self._queue.put_nowait(item)

    def close(self, error: BaseException | None = None) -> None:
        """No more will come; `error` is raised to the consumer."""
        self._queue.put_nowait(_Closed(error))

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            item = await self._queue.get()
            if isinstance(item, _Closed):
                if item.error is not None:
                    raise item.error
                return
            yield item
