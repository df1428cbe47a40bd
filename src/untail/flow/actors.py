"""What runs inside Ray: the hub's actor and the workers' actor.

Invariant: whatever order Ray delivers calls in, they are begun in the order in which they were made. Failures are
returned, not raised: an error that Ray itself raises means that the actor is gone.
"""

import asyncio
import itertools
import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray

from untail import __version__
from untail.flow import codec
from untail.flow.handle import if_cancelled
from untail.flow.hub import Hub
from untail.flow.link import Link
from untail.flow.peer import Undo, portable
from untail.flow.process import settle_on
from untail.flow.ray_devices import Seat
from untail.flow.worker import Host, Place

Parcel = tuple[bytes, list[np.ndarray]]
"""A message on its way: arrays are what Ray keeps in its object store."""
Told = tuple[bool, Any]
"""It went well, and the result; or not, and the error."""


@dataclass(frozen=True)
class Kept:
    """A parcel that the hub itself put into the object store: it outlives who sent it, and nodes fetch it from each
    other."""

    ref: Any


def pack(thing: Any) -> Parcel:
    stream, buffers = codec.encode(thing)
    return stream, [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]


def unpack(parcel: Parcel | Kept, keep: bool = False) -> Any:
    """A copy: what is in the object store cannot be written to."""
    stream, buffers = ray.get(parcel.ref) if isinstance(parcel, Kept) else parcel
    return codec.decode(stream, [bytearray(buffer) for buffer in buffers])


def drop(parcel: Parcel | Kept) -> None:
    """Ray counts who still refers to it."""


class InOrder:
    """Lets calls begin by their numbers."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, asyncio.Event] = {}

    async def turn(self, number: int) -> None:
        if number != self._next:
            event = self._waiting[number] = asyncio.Event()
            await event.wait()
            del self._waiting[number]

    def begun(self) -> None:
        self._next += 1
        if self._next in self._waiting:
            self._waiting[self._next].set()


async def _told(begin: Callable[[], "Future[Any]"], order: InOrder, number: int) -> Told:
    """Begin when it is its turn; what came of it."""
    await order.turn(number)
    try:
        try:
            future = begin()
        finally:
            order.begun()
        return True, await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        return False, asyncio.CancelledError()
    except BaseException as error:
        return False, portable(error)


class HubActor:
    """The hub, for those who are elsewhere."""

    def __init__(self, lease_s: float):
        self.hub = Hub(lease_s)
        self._orders: dict[str, InOrder] = {}
        self._asked: dict[tuple[str, int], Future[Any]] = {}

    async def ask(self, link: str, number: int, owner: str, kind: str, method: str, about: tuple[Any, ...]) -> Told:
        def begin() -> "Future[Any]":
            nonlocal about
            if (kind, method) == ("record", "publish"):
                version, records = about
                keep = lambda record: replace(record, parcel=Kept(ray.put(record.parcel)))
                about = version, {name: keep(record) for name, record in records.items()}
            self._asked[link, number] = self.hub.ask(owner, kind, method, about)
            return self._asked[link, number]

        try:
            return await _told(begin, self._orders.setdefault(link, InOrder()), number)
        finally:
            self._asked.pop((link, number), None)

    async def cancel(self, link: str, number: int) -> None:
        if (asked := self._asked.get((link, number))) is not None:
            asked.cancel()

    async def lost(self, owner: str) -> None:
        self.hub.lost(owner)


class WorkerActor:
    """A process that hosts one worker."""

    def hello(self) -> str:
        return __version__

    async def until_gone(self) -> None:
        """Never returns: the driver sees the actor's death by it."""
        await asyncio.Event().wait()

    async def make(
        self, place: Place, cluster: str, hub: Any, lease_s: float, seats: list[Seat], cls: bytes, about: Parcel
    ) -> Told:
        _sit_on(seats)
        self.host = Host(asyncio.get_running_loop())
        self.order = InOrder()
        link = Link(cluster, place.name, ToHub(hub, place.name), lease_s)
        load = lambda: (ray.cloudpickle.loads(cls), unpack(about))
        return await _told(lambda: self.host.make(place, link, load), InOrder(), 0)

    async def call(self, number: int, method: str, parcel: Parcel) -> Told:
        return await _told(lambda: self.host.run(method, lambda: unpack(parcel), pack), self.order, number)


def _sit_on(seats: list[Seat]) -> None:
    numbers = [seat.number for seat in seats]
    if any(seat.is_gpu for seat in seats):
        settle_on(numbers, [], 1)
        return
    there = sorted(os.sched_getaffinity(0))
    settle_on([], sorted({there[number % len(there)] for number in numbers}), max(1, len(numbers)))


class ToHub:
    """A process's way to the hub's actor."""

    pack = staticmethod(pack)
    unpack = staticmethod(unpack)
    drop = staticmethod(drop)

    def __init__(self, hub: Any, owner: str):
        self._hub = hub
        self._owner = owner
        self._link = uuid.uuid4().hex
        self._numbers = itertools.count()

    def ask_hub(self, kind: str, method: str, about: tuple[Any, ...], undo: Undo | None = None) -> "Future[Any]":
        future: Future[Any] = Future()
        number = next(self._numbers)
        ref = self._hub.ask.remote(self._link, number, self._owner, kind, method, about)
        ref.future().add_done_callback(lambda done: self._tell(future, done, undo))
        if_cancelled(future, lambda: self._hub.cancel.remote(self._link, number))
        return future

    @staticmethod
    def _tell(future: "Future[Any]", done: "Future[Any]", undo: Undo | None) -> None:
        error = done.exception()
        fine, value = (False, error) if error is not None else done.result()
        if not future.set_running_or_notify_cancel():
            if fine and undo is not None:
                with suppress(Exception):
                    undo(value)
        elif fine:
            future.set_result(value)
        else:
            future.set_exception(value)
