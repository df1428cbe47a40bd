"""Two processes that ask each other over a pipe, many questions at once.

Invariant: every question gets one answer, or the error that the other end is gone. One that was cancelled is called
off at the other end; should its answer have been on its way, it goes to `undo`. The reading thread only hands on: it
never waits for anybody, so the pipe is always drained.
"""

import itertools
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any, TypeVar

from untail.flow.failures import FlowError
from untail.flow.handle import failed, if_cancelled

Serve = Callable[[Any], "Future[Any]"]
Undo = Callable[[Any], object]


class Peer:
    def __init__(self, pipe: Connection, serve: Serve, lost: Callable[[], None], gone: Callable[[], Exception]):
        """`serve` answers what the other end asks; `lost` hears once that it is gone, and `gone` says so to those who
        asked it."""
        self._pipe = pipe
        self._serve = serve
        self._lost = lost
        self._gone = gone
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Future[Any], Undo | None]] = {}
        self._asking: dict[int, Future[Any]] = {}  # what the other end wants to know
        self._is_lost = False
        self._lock = Lock()
        self._sending = Lock()

    def start(self) -> None:
        Thread(target=self._read, name="untail-peer", daemon=True).start()

    def ask(self, body: Any, undo: Undo | None = None) -> "Future[Any]":
        """What cannot be sent is raised here."""
        message = pickle.dumps(("ask", number := next(self._numbers), body), protocol=5)
        future: Future[Any] = Future()
        with self._lock:
            if self._is_lost:
                return failed(self._gone())
            self._asked[number] = (future, undo)
        if_cancelled(future, lambda: self._send(pickle.dumps(("cancel", number))))
        self._send(message)
        return future

    def _send(self, message: bytes) -> None:
        with suppress(OSError, ValueError), self._sending:  # whoever reads will see that it is gone
            self._pipe.send_bytes(message)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._hear(*pickle.loads(self._pipe.recv_bytes()))
        with self._lock:
            self._is_lost = True
            asked, self._asked = self._asked, {}
        with self._sending:  # else somebody could still be writing to its number when that is another pipe's
            self._pipe.close()
        self._lost()
        for future, _ in asked.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._gone())

    def _hear(self, kind: str, number: int, *about: Any) -> None:
        if kind == "ask":
            self._answer(number, about[0])
        elif kind == "cancel":
            if (asking := self._asking.get(number)) is not None:
                asking.cancel()
        else:
            with self._lock:
                future, undo = self._asked.pop(number)
            if kind == "answer":
                _resolve(future, undo, *about)

    def _answer(self, number: int, body: Any) -> None:
        try:
            future = self._serve(body)
        except Exception as error:
            future = failed(error)
        self._asking[number] = future
        future.add_done_callback(lambda future: self._reply(number, future))

    def _reply(self, number: int, future: "Future[Any]") -> None:
        self._asking.pop(number, None)
        if future.cancelled():
            message: tuple[Any, ...] = ("cancelled", number)
        elif (error := future.exception()) is not None:
            message = ("answer", number, False, portable(error))
        else:
            message = ("answer", number, True, future.result())
        self._send(pickle.dumps(message, protocol=5))


def _resolve(future: "Future[Any]", undo: Undo | None, fine: bool, value: Any) -> None:
    if not future.set_running_or_notify_cancel():
        if fine and undo is not None:
            undo(value)
    elif fine:
        future.set_result(value)
    else:
        future.set_exception(value)


E = TypeVar("E", bound=BaseException)


def portable(error: E) -> E | FlowError:
    """Itself, if it survives the journey to another process; else one that says the same."""
    said = FlowError(f"{type(error).__name__}: {error}")
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else said
    except Exception:
        return said
