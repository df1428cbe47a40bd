"""An event loop in virtual time: where another loop would wait, this one moves its clock.

Invariant: time stands still while any task is ready, and jumps to the next timer when none is. `asyncio.sleep`,
`asyncio.timeout` and `LoopClock` follow by themselves. Nothing that takes real time may be awaited without a file
descriptor behind it that is ready already: the loop waits for nobody, threads and processes included.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingSelector(selectors.DefaultSelector):
    """Moves `now` on by the time that it was asked to wait, unless a file descriptor is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing is scheduled: every task waits for another")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run` does, in virtual time from 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
