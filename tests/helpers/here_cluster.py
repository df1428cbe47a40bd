"""A cluster whose workers live in this process, each on a thread of its own: what a flow does can be tested without
starting processes. Messages are pickled all the same."""

import asyncio
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from untail.flow import codec
from untail.flow.cluster import check_devices
from untail.flow.failures import WorkerLost
from untail.flow.handle import failed
from untail.flow.hub import Hub
from untail.flow.link import ClusterChannel, Link
from untail.flow.lock import DeviceLock
from untail.flow.worker import Host, Place, Worker, WorkerGroup


def pack(thing: Any) -> Any:
    stream, buffers = codec.encode(thing)
    return stream, [bytes(buffer) for buffer in buffers]


class Way:
    """A worker's way to the hub."""

    def __init__(self, hub: Hub, owner: str):
        self.hub, self.owner = hub, owner
        self.pack = pack

    def ask_hub(self, kind: str, method: str, about: tuple[Any, ...], undo: Any = None) -> "Future[Any]":
        return self.hub.ask(self.owner, kind, method, about)

    def unpack(self, parcel: Any, keep: bool = False) -> Any:
        return codec.decode(parcel[0], [bytearray(buffer) for buffer in parcel[1]])

    def drop(self, parcel: Any) -> None:
        pass


class HereCluster:
    on_gpus = False

    def __init__(self, devices: int):
        self.devices = list(range(devices))
        self.name = uuid.uuid4().hex
        self.hub = Hub()
        self.link = Link(self.name, "driver", Way(self.hub, "driver"), 10.0)
        self.groups: dict[str, HereWorkers] = {}
        self.made: list[Worker] = []
        self.loop = asyncio.new_event_loop()  # of all workers
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def group(self, cls: type[Worker], *about: Any, devices: Sequence[Sequence[int]], name: str) -> WorkerGroup:
        check_devices(name, devices, self.devices)
        self.groups[name] = HereWorkers(self, cls, about, devices, name)
        return WorkerGroup(cls, name, self.groups[name], devices)

    def channel(self, name: str, capacity: float | None = None) -> ClusterChannel[Any]:
        return self.link.channel(name, capacity)

    def lock(self, devices: Sequence[int]) -> DeviceLock:
        return self.link.lock(devices)

    def alive(self) -> dict[str, bool]:
        return {place.name: group.alive(place.rank) for group in self.groups.values() for place in group.places}

    def close(self) -> None:
        """Also those that were killed: their threads are still here."""
        for worker in self.made:
            worker.close()
        self.hub.close()
        self.link.close()
        self.loop.call_soon_threadsafe(self.loop.stop)


class HereWorkers:
    def __init__(self, cluster: HereCluster, cls: type[Worker], about: Any, devices: Any, name: str):
        self.cluster = cluster
        self.what = (cls, pack(about))
        self.places = [Place(name, rank, len(devices), tuple(each)) for rank, each in enumerate(devices)]
        self.ways = [Way(cluster.hub, place.name) for place in self.places]
        self.dead: set[int] = set()
        self.open: dict[int, set[Future[Any]]] = {}
        self.hosts: dict[int, Host] = {}
        for rank in range(len(devices)):
            self.revive(rank)

    def worker(self, rank: int) -> Any:
        """The very object."""
        return self.hosts[rank].worker

    def call(self, ranks: Sequence[int], method: str, about: Any, named: Any) -> "list[Future[Any]]":
        return [self._call(rank, method, pack((about, named))) for rank in ranks]

    def unpack(self, parcel: Any) -> Any:
        return self.ways[0].unpack(parcel)

    def alive(self, rank: int) -> bool:
        return rank not in self.dead

    def kill(self, rank: int) -> None:
        """Whatever its thread is still doing, nobody hears of it."""
        self.dead.add(rank)
        self.cluster.hub.lost(self.places[rank].name)
        for future in list(self.open[rank]):
            future.set_exception(WorkerLost(self.places[rank].name, "it was killed"))

    def revive(self, rank: int) -> None:
        place, way = self.places[rank], self.ways[rank]
        self.hosts[rank], self.open[rank] = Host(self.cluster.loop), set()
        link = Link.__new__(Link)
        link.__dict__.update(self.cluster.link.__dict__, owner=place.name, carrier=way)
        self.hosts[rank].make(place, link, lambda: (self.what[0], way.unpack(self.what[1]))).result()
        self.cluster.made.append(self.worker(rank))
        self.dead.discard(rank)

    def _call(self, rank: int, method: str, parcel: Any) -> "Future[Any]":
        if rank in self.dead:
            return failed(WorkerLost(self.places[rank].name, "it was killed"))
        heard: Future[Any] = Future()
        self.open[rank].add(heard)

        def tell(done: "Future[Any]") -> None:
            if heard.done():  # it was killed meanwhile
                return
            self.open[rank].discard(heard)
            error = done.exception()
            heard.set_result(done.result()) if error is None else heard.set_exception(error)

        self.hosts[rank].run(method, lambda: self.ways[rank].unpack(parcel), pack).add_done_callback(tell)
        return heard
