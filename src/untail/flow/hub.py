"""What the workers of a cluster share: its channels, its device locks and its published tensors, in one place.

Invariant: the hub never looks into what passes through it. It hears of every worker's death, and takes the dead out of
all that it keeps. It lives in the driver's process, or on Ray in an actor on the driver's node.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

from untail.flow.channel import Channel
from untail.flow.handle import Handle, finished
from untail.flow.lock import LEASE_S, LockTable
from untail.flow.record import Records

LOOK_S = 0.5


class Hub:
    def __init__(self, lease_s: float = LEASE_S):
        self.locks = LockTable(lease_s)
        self.records = Records()
        self._channels: dict[str, Channel[Any]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._look_after_leases, name="untail-leases", daemon=True).start()

    def ask(self, owner: str, kind: str, method: str, about: tuple[Any, ...]) -> "Future[Any]":
        """What worker `owner` wants of one of the things here."""
        answer = self._METHODS[kind, method](self, owner, *about)
        if isinstance(answer, Handle):
            return answer.future
        return answer if isinstance(answer, Future) else finished(answer)

    def lost(self, owner: str) -> None:
        """A worker died."""
        self.locks.lost(owner)
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.lost(owner)

    def close(self) -> None:
        self._closed.set()

    def _open(self, owner: str, name: str, capacity: float | None) -> None:
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                self._channels[name] = Channel(name, capacity)
            elif capacity is not None and channel.capacity != capacity:
                raise ValueError(
                    f"channel {name!r} has the capacity {channel.capacity} already, and cannot have {capacity} too; "
                    "give one of them another name"
                )

    def _channel(self, name: str) -> Channel[Any]:
        with self._lock:
            return self._channels[name]

    def _look_after_leases(self) -> None:
        while not self._closed.wait(LOOK_S):
            self.locks.expire()

    _METHODS: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("channel", "open"): _open,
        ("channel", "put"): lambda hub, owner, name, *about: hub._channel(name).put(*about, owner=owner),
        ("channel", "take"): lambda hub, owner, name, *about: hub._channel(name).take(*about, owner=owner),
        ("channel", "give_back"): lambda hub, owner, name, *about: hub._channel(name).give_back(*about),
        ("channel", "size"): lambda hub, owner, name, key: hub._channel(name).size(key),
        ("channel", "close"): lambda hub, owner, name, error: hub._channel(name).close(error),
        ("lock", "acquire"): lambda hub, owner, devices: hub.locks.acquire(devices, owner),
        ("lock", "renew"): lambda hub, owner, leases: hub.locks.renew(leases),
        ("lock", "release"): lambda hub, owner, lease: hub.locks.release(lease),
        ("lock", "owners"): lambda hub, owner: hub.locks.owners(),
        ("record", "publish"): lambda hub, owner, *about: hub.records.publish(*about),
        ("record", "find"): lambda hub, owner, *about: hub.records.find(*about),
    }
