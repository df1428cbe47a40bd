"""Who may use a device: one owner at a time, first come first served, for as long as its lease holds.

    lock = cluster.lock([0, 1])             # both devices or none; inside a worker: self.lock() for its own
    async with lock: ...                    # `with lock:` outside of an event loop
    lock.owners().wait()                    # {0: "learner[0]", 1: "learner[0]"}

Invariant: a device has at most one owner. Requests are served in the order in which they came: one waits only for those
that hold, or asked earlier for, one of its devices, so whatever is asked for, nobody waits in a circle. A lease ends
when it is released, when its owner dies, or when it has not been renewed for `lease_s`; an owner that comes back after
that is told so (`LeaseLost`) and takes nothing from the new one. Renewal is automatic while the owner's process runs.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from untail.flow.failures import LeaseLost
from untail.flow.handle import Handle, if_cancelled

LEASE_S = 10.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use some devices. `number` grows with every lease that is given."""

    number: int
    owner: str
    devices: tuple[int, ...]


@dataclass(eq=False)
class _Request:
    lease: Lease
    future: "Future[Lease]" = field(default_factory=Future)


class LockTable:
    """The leases of all devices, and who waits for which."""

    def __init__(self, lease_s: float = LEASE_S, now: Callable[[], float] = time.monotonic):
        self.lease_s = lease_s
        self._now = now
        self._held: dict[int, Lease] = {}  # by number
        self._until: dict[int, float] = {}  # by number
        self._waiting: list[_Request] = []  # first come first
        self._numbers = itertools.count(1)
        self._lock = Lock()

    def acquire(self, devices: Iterable[int], owner: str) -> Handle[Lease]:
        """A lease on all of the devices, once nobody who came earlier holds or wants one of them."""
        wanted = tuple(sorted(set(devices)))
        if not wanted:
            raise ValueError(f"{owner} asks for a lock on no device; name one or more")
        with self._lock:
            request = _Request(Lease(next(self._numbers), owner, wanted))
            self._waiting.append(request)
        self.expire()
        if_cancelled(request.future, self.expire)
        what = f"the lock on devices {list(wanted)} for {owner}"
        return Handle(request.future, what, undo=lambda lease: self.release(lease))

    def renew(self, leases: Iterable[Lease]) -> list[Lease]:
        """Those that have been lost meanwhile."""
        with self._lock:
            lost = [lease for lease in leases if lease.number not in self._held]
            for lease in leases:
                if lease.number in self._held:
                    self._until[lease.number] = self._now() + self.lease_s
        return lost

    def release(self, lease: Lease) -> None:
        with self._lock:
            is_held = self._forget(lease.number)
        self.expire()
        if not is_held:
            raise LeaseLost(
                f"{lease.owner} held devices {list(lease.devices)} without renewing its lease for {self.lease_s:g} s, "
                "and they went on to others: what it did on them since is not protected; raise flow.lease_s if its "
                "process may stand still for so long"
            )

    def lost(self, owner: str) -> None:
        """It died: what it holds is free, and it waits for nothing."""
        with self._lock:
            for number in [number for number, lease in self._held.items() if lease.owner == owner]:
                self._forget(number)
            for request in [request for request in self._waiting if request.lease.owner == owner]:
                self._waiting.remove(request)
        self.expire()

    def owners(self) -> dict[int, str]:
        """Of the devices that are held."""
        with self._lock:
            return {device: lease.owner for lease in self._held.values() for device in lease.devices}

    def waiting(self) -> list[Lease]:
        """What has been asked for and not been given yet, first come first."""
        with self._lock:
            return [request.lease for request in self._waiting]

    def expire(self) -> None:
        """Take back what was not renewed, and give what is free. To be called now and then."""
        with self._lock:
            for number in [number for number, until in self._until.items() if until <= self._now()]:
                self._forget(number)
            granted = self._grant()
        for request in granted:
            request.future.set_result(request.lease)

    def _forget(self, number: int) -> bool:
        self._until.pop(number, None)
        return self._held.pop(number, None) is not None

    def _grant(self) -> list[_Request]:
        granted: list[_Request] = []
        taken = {device for lease in self._held.values() for device in lease.devices}
        for request in list(self._waiting):
            lease = request.lease
            if request.future.cancelled():
                self._waiting.remove(request)
            elif taken.isdisjoint(lease.devices) and request.future.set_running_or_notify_cancel():
                self._waiting.remove(request)
                self._held[lease.number], self._until[lease.number] = lease, self._now() + self.lease_s
                granted.append(request)
            taken.update(() if request.future.cancelled() else lease.devices)
        return granted


class DeviceLock:
    """A lock on some devices for one owner, from wherever it is: see `Cluster.lock` and `Worker.lock`."""

    def __init__(self, locks: Any, devices: Iterable[int]):
        """`locks` is the owner's way to the table (flow/link.py), which renews what it holds."""
        self.devices = sorted(set(devices))
        self._locks = locks
        self._lease: Lease | None = None

    def acquire(self) -> Handle[Lease]:
        handle: Handle[Lease] = self._locks.acquire(self.devices)
        return handle

    def owners(self) -> Handle[dict[int, str]]:
        """Who holds which of all devices now."""
        handle: Handle[dict[int, str]] = self._locks.owners()
        return handle

    def __enter__(self) -> Lease:
        self._lease = self.acquire().wait()
        return self._lease

    def __exit__(self, *about: object) -> None:
        self._release().wait()

    async def __aenter__(self) -> Lease:
        self._lease = await self.acquire()
        return self._lease

    async def __aexit__(self, *about: object) -> None:
        await self._release()

    def _release(self) -> Handle[None]:
        lease, self._lease = self._lease, None
        handle: Handle[None] = self._locks.release(lease)
        return handle
