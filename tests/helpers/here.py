"""A cluster in this process: every worker has a thread with an event loop instead of a process, so that tests of what
is built on workers start at once. Channels and locks are the real ones, in their in-process form."""

import asyncio
import threading
from concurrent.futures import Future

from untail.flow.channel import Channel
from untail.flow.handle import Handle
from untail.flow.lock import DeviceLock, LockTable
from untail.flow.worker import Host, Place, WorkerGroup


class Here:
    def __init__(self, devices: int = 2):
        self.devices = list(range(devices))
        self.channels: dict[str, Channel] = {}
        self.locks = _Locks()
        self.log: list[tuple[str, str]] = []  # worker and method of every call
        self.workers: dict[str, object] = {}
        self._loops: list[asyncio.AbstractEventLoop] = []

    def group(self, cls, *about, devices, name):
        callers = _Caller(self, cls, about, devices, name)
        return WorkerGroup(cls, name, callers, devices)

    def channel(self, name, capacity=None):
        return self.channels.setdefault(name, Channel(name, capacity))

    def lock(self, devices):
        return DeviceLock(self.locks, devices)

    def new_loop(self):
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self._loops.append(loop)
        return loop

    def close(self):
        for loop in self._loops:
            loop.call_soon_threadsafe(loop.stop)

    def __enter__(self):
        return self

    def __exit__(self, *about):
        self.close()


class _Locks:
    def __init__(self):
        self.table = LockTable()

    def acquire(self, devices):
        return self.table.acquire(devices, "driver")

    def release(self, lease):
        done: Future = Future()
        done.set_result(self.table.release(lease))
        return Handle(done)


class _Caller:
    def __init__(self, cluster, cls, about, devices, name):
        self.cluster, self.name = cluster, name
        self.hosts = [Host(cluster.new_loop()) for _ in devices]
        for rank, (host, own) in enumerate(zip(self.hosts, devices, strict=True)):
            place = Place(name, rank, len(devices), tuple(own))
            host.make(place, cluster, lambda: (cls, about)).result(timeout=120)
            cluster.workers[place.name] = host.worker

    def call(self, ranks, method, about, named):
        self.cluster.log += [(f"{self.name}[{rank}]", method) for rank in ranks]
        return [self.hosts[rank].run(method, lambda: (about, named), lambda result: result) for rank in ranks]

    def unpack(self, parcel):
        return parcel
