"""A backend whose engine can be lost and come back, around any other."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from untail.backends.base import EngineLost
from untail.errors import SequenceStateError
from untail.types import Chunk, SequenceSpec

ASKED = ("extend", "append", "fork", "release", "cut", "abort", "pause", "resume", "load_weights")


class Mortal:
    def __init__(self, inner: Any):
        self.inner = inner
        self.dead = asyncio.Event()
        self.deaths = 0
        self._born: dict[str, int] = {}  # sequences, and after how many deaths

    def die(self) -> None:
        """What it had not told is gone."""
        self.dead.set()

    def revive(self) -> None:
        """It knows nobody of before."""
        self.dead = asyncio.Event()
        self.deaths += 1

    def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        self._born[spec.id] = self.deaths
        return self._read(self.inner.generate(spec))

    def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        return self._read(self.inner.stream(name))

    def __getattr__(self, name: str) -> Any:
        if name not in ASKED:
            return getattr(self.inner, name)

        async def ask(*about: Any) -> Any:
            self._refuse()
            if about and isinstance(about[0], str) and self._born.get(about[0], self.deaths) < self.deaths:
                raise SequenceStateError(f"sequence {about[0]!r} is unknown")
            return await getattr(self.inner, name)(*about)

        return ask

    async def _read(self, stream: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
        self._refuse()
        dead = asyncio.ensure_future(self.dead.wait())
        async with aclosing(stream) as chunks:
            while True:
                chunk = asyncio.ensure_future(anext(chunks, None))
                try:
                    await asyncio.wait({chunk, dead}, return_when=asyncio.FIRST_COMPLETED)
                    if dead.done():
                        raise EngineLost("it was killed")
                finally:
                    if not chunk.done():
                        chunk.cancel()
                        await asyncio.gather(chunk, return_exceptions=True)
                told = chunk.result()
                if told is None:
                    dead.cancel()
                    return
                yield told

    def _refuse(self) -> None:
        if self.dead.is_set():
            raise EngineLost("it is dead")
