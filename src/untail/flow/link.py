"""A process's way to its cluster's hub, and what it makes of it: channels, locks, published tensors.

Invariant: one link per process and cluster. What is sent over it is stamped with its owner's name. Channels and locks
that travel in a message belong to the link of the process where they arrive. While the process lives, its link renews
the leases that it holds.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from untail.flow.channel import Item, Key, Readable
from untail.flow.failures import FlowError
from untail.flow.handle import Handle
from untail.flow.lock import DeviceLock, Lease
from untail.flow.peer import Undo

T = TypeVar("T")
_LINKS: dict[str, "Link"] = {}  # by cluster


class Carrier(Protocol):
    """What a backend has to give: a way to ask the hub, and one for things to travel."""

    def ask_hub(self, kind: str, method: str, about: tuple[Any, ...], undo: Undo | None = None) -> "Future[Any]": ...

    def pack(self, thing: Any) -> Any: ...

    def unpack(self, parcel: Any, keep: bool = False) -> Any:
        """What was packed; it cannot be unpacked again, unless it is kept."""
        ...

    def drop(self, parcel: Any) -> None:
        """Nobody will unpack it any more."""
        ...


class Link:
    def __init__(self, cluster: str, owner: str, carrier: Carrier, lease_s: float):
        self.cluster = cluster
        self.owner = owner
        self.carrier = carrier
        self.locks = Locks(self, lease_s)
        _LINKS[cluster] = self

    def ask(self, kind: str, method: str, *about: Any, undo: Undo | None = None) -> "Future[Any]":
        return self.carrier.ask_hub(kind, method, about, undo)

    def channel(self, name: str, capacity: float | None) -> "ClusterChannel[Any]":
        self.ask("channel", "open", name, capacity).result()
        return ClusterChannel(self.cluster, name)

    def lock(self, devices: Iterable[int]) -> DeviceLock:
        return DeviceLock(self.locks, devices)

    def close(self) -> None:
        self.locks.close()
        if _LINKS.get(self.cluster) is self:
            del _LINKS[self.cluster]


def link_of(cluster: str) -> Link:
    try:
        return _LINKS[cluster]
    except KeyError:
        raise FlowError(
            "this channel belongs to a cluster that is closed, or that this process is no part of"
        ) from None


class ClusterChannel(Readable[T]):
    """A channel that all workers of a cluster can use; it may be handed to them as an argument."""

    def __init__(self, cluster: str, name: str):
        self.name = name
        self._cluster = cluster

    def put(self, item: T, key: Key = "", weight: float = 1.0) -> Handle[None]:
        """The item is on its way when this returns; the handle is done once there is room for it."""
        link = link_of(self._cluster)
        sent = link.ask("channel", "put", self.name, link.carrier.pack(item), key, weight)
        return Handle(sent, f"put to channel {self.name!r}")

    def size(self, key: Key = "") -> Handle[int]:
        return Handle(link_of(self._cluster).ask("channel", "size", self.name, key))

    def close(self, error: BaseException | None = None) -> Handle[None]:
        return Handle(link_of(self._cluster).ask("channel", "close", self.name, error))

    def _take(self, key: Key, weight: float | None) -> "Future[list[Item[T]]]":
        undo = lambda items: self._give_back(key, items)
        return link_of(self._cluster).ask("channel", "take", self.name, key, weight, undo=undo)

    def _give_back(self, key: Key, items: list[Item[T]]) -> None:
        link_of(self._cluster).ask("channel", "give_back", self.name, key, items)

    def _value(self, item: Item[T]) -> T:
        value: T = link_of(self._cluster).carrier.unpack(item.value)
        return value


class Locks:
    """The leases that this process holds, and their renewal."""

    def __init__(self, link: Link, lease_s: float):
        self._link = link
        self._every = lease_s / 4
        self._held: dict[int, Lease] = {}
        self._closed = threading.Event()
        self._renewing: threading.Thread | None = None

    def acquire(self, devices: Iterable[int]) -> Handle[Lease]:
        future = self._link.ask("lock", "acquire", list(devices), undo=self.release)
        future.add_done_callback(self._hold)
        return Handle(future, f"the lock on devices {list(devices)}", undo=self.release)

    def release(self, lease: Lease) -> Handle[None]:
        self._held.pop(lease.number, None)
        return Handle(self._link.ask("lock", "release", lease))

    def owners(self) -> Handle[dict[int, str]]:
        return Handle(self._link.ask("lock", "owners"))

    def close(self) -> None:
        self._closed.set()

    def _hold(self, future: "Future[Lease]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        self._held[future.result().number] = future.result()
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, name="untail-renewal", daemon=True)
            self._renewing.start()

    def _renew(self) -> None:
        while not self._closed.wait(self._every):
            held = list(self._held.values())
            if held:
                with suppress(Exception):  # the hub is gone: everybody hears of that elsewhere
                    for lease in self._link.ask("lock", "renew", held).result():
                        self._held.pop(lease.number, None)
