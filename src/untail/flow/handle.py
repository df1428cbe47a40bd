"""What a call returns at once: its result may be waited for, or awaited.

Invariant: a handle is loop-agnostic. `wait` blocks the calling thread, `await` suspends the calling task, on whichever
loop that runs; both raise what the work raised. A result that comes when nobody is there to take it any more (the
waiter was cancelled, or its time was up) is given to `undo`, if there is one, and never lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Handle(Generic[T]):
    def __init__(
        self,
        future: "Future[Any]",
        what: str = "the work",
        undo: Callable[[Any], object] | None = None,
        convert: Callable[[Any], T] | None = None,
    ):
        """`what` is named when time is up. With `undo`, a waiter that leaves calls the work off. `convert` makes the
        result of what the future brings, once, on the thread that wants it."""
        self._future = future
        self._what = what
        self._undo = undo
        self._convert = convert
        self._converted: list[T] = []

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def future(self) -> "Future[Any]":
        """What it stands for, before it is converted."""
        return self._future

    def wait(self, timeout: float | None = None) -> T:
        """The result. Not to be called on an event loop's thread: there, await it."""
        wait_for([self._future], timeout)
        if not self._future.done() and not self._call_off():
            raise TimeoutError(f"{self._what} has not come to its end in {timeout:g} s")
        return self._result()

    def __await__(self) -> Generator[Any, None, T]:
        if not self._future.done():
            yield from self._until_done()
        return self._result()

    def _result(self) -> T:
        value = self._future.result()
        if self._convert is None:
            return cast(T, value)
        if not self._converted:
            self._converted.append(self._convert(value))
        return self._converted[0]

    def _until_done(self) -> Generator[Any, None, None]:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def tell(_: Any) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(wake)

        self._future.add_done_callback(tell)
        try:
            yield from waiter.__await__()
        except asyncio.CancelledError:
            if self._call_off():
                self._give_back()
            raise

    def _call_off(self) -> bool:
        """Nobody waits any longer; True if the result has come all the same, or is just being handed over."""
        if self._undo is None or self._future.cancel():
            return False
        wait_for([self._future])
        return True

    def _give_back(self) -> None:
        if self._undo is not None and self._future.exception() is None:
            self._undo(self._future.result())


def finished(value: T) -> "Future[T]":
    future: Future[T] = Future()
    future.set_result(value)
    return future


def failed(error: BaseException) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def if_cancelled(future: "Future[Any]", then: Callable[[], None]) -> None:
    def look(future: "Future[Any]") -> None:
        if future.cancelled():
            then()

    future.add_done_callback(look)


async def all_ended(calls: Iterable[Awaitable[Any]]) -> None:
    """None of them is under way any more when this returns, or raises the first failure."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def all_of(futures: "Sequence[Future[T]]") -> "Future[list[T]]":
    """The results in order, once all are there; or the first failure, as soon as there is one."""
    whole: Future[list[T]] = Future()
    left, lock = len(futures), Lock()

    def one_is_done(future: "Future[T]") -> None:
        nonlocal left
        with lock:
            left -= 1
            if whole.done():
                return
            error = future.exception()
            if error is not None:
                whole.set_exception(error)
            elif left == 0:
                whole.set_result([each.result() for each in futures])

    if not futures:
        whole.set_result([])
    for future in futures:
        future.add_done_callback(one_is_done)
    return whole
