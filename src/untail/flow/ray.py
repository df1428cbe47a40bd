"""The cluster of many machines: an actor for each worker, on devices that a placement group reserves.

Invariant: the same as on one machine (flow/local.py): calls run in order, a lost worker or node is heard of within
seconds, tensors go through the object store. The hub is an actor on the driver's node: what passed through it outlives
who sent it. Everything ends with the driver.
"""

import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util import remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from untail import __version__
from untail.errors import UserError
from untail.flow.actors import HubActor, ToHub, WorkerActor, pack, unpack
from untail.flow.cluster import check_count, check_devices
from untail.flow.failures import WorkerLost, not_there_yet
from untail.flow.handle import all_of, failed
from untail.flow.link import ClusterChannel, Link
from untail.flow.local import DRIVER, LEAVE_S, START_S, other_version
from untail.flow.lock import LEASE_S, DeviceLock
from untail.flow.ray_devices import join, reserve, seats_of
from untail.flow.worker import Place, Worker, WorkerGroup

REVIVE_S = 60.0  # longer than it takes Ray to notice that a node is gone
AT_ONCE = 100_000  # calls that an actor may have open: each that waits for something counts


class RayCluster:
    def __init__(self, address: str | None = None, devices: int | None = None, lease_s: float = LEASE_S):
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            join(address)
        self.name = uuid.uuid4().hex
        self.lease_s = lease_s
        self.on_gpus = bool(ray.cluster_resources().get("GPU"))
        self._kind = "GPU" if self.on_gpus else "CPU"
        there = int(ray.cluster_resources().get(self._kind, 0))
        try:
            count = check_count(devices, there, "Ray cluster")
            self._reserved = reserve(self._kind, count, there)
        except BaseException:
            self._leave_ray()
            raise
        self.devices = list(range(count))
        self.seats = seats_of(self._reserved, self._kind)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.hub = (
            ray.remote(HubActor).options(num_cpus=0, max_concurrency=AT_ONCE, scheduling_strategy=here).remote(lease_s)
        )
        self.link = Link(self.name, DRIVER, ToHub(self.hub, DRIVER), lease_s)
        self._groups: dict[str, _Actors] = {}

    def group(self, cls: type[Worker], *about: Any, devices: Sequence[Sequence[int]], name: str) -> WorkerGroup:
        check_devices(name, devices, self.devices)
        if name in self._groups:
            raise UserError(f"there is a group {name!r} already; give this one another name")
        workers = _Actors(self, cls, about, devices, name)
        workers.start(range(len(devices)))
        self._groups[name] = workers
        return WorkerGroup(cls, name, workers, devices)

    def channel(self, name: str, capacity: float | None = None) -> ClusterChannel[Any]:
        return self.link.channel(name, capacity)

    def lock(self, devices: Sequence[int]) -> DeviceLock:
        check_devices("the lock", [devices], self.devices)
        return self.link.lock(devices)

    def alive(self) -> dict[str, bool]:
        return {place.name: group.alive(place.rank) for group in self._groups.values() for place in group.places}

    def nodes(self) -> set[str]:
        """Those that are alive."""
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self.link.close()
        ray.kill(self.hub)
        remove_placement_group(self._reserved)
        self._leave_ray()

    def _leave_ray(self) -> None:
        if self._is_ours:
            ray.shutdown()


class _Actors:
    """The workers of one group, as the driver sees them."""

    def __init__(
        self,
        cluster: RayCluster,
        cls: type[Worker],
        about: tuple[Any, ...],
        devices: Sequence[Sequence[int]],
        name: str,
    ):
        self.cluster = cluster
        self.places = [Place(name, rank, len(devices), tuple(each)) for rank, each in enumerate(devices)]
        for place in self.places:
            self._refuse_many_nodes(place)
        self._what = ray.cloudpickle.dumps(cls), pack(about)
        self._actors: dict[int, Any] = {}
        self._dead: set[int] = set()
        self._made: set[int] = set()  # whose workers can be called, unless they are dead
        self._numbers: dict[int, int] = {}
        self._closing = False
        self._lock = threading.Lock()

    def start(self, ranks: Sequence[int]) -> None:
        """All at once; if one cannot be made, none is left."""
        try:
            all_of([self._begin(self.places[rank]) for rank in ranks]).result(START_S)
            self._made.update(ranks)
        except BaseException:
            for rank in ranks:
                self.kill(rank)
            raise

    def call(
        self, ranks: Sequence[int], method: str, about: tuple[Any, ...], named: dict[str, Any]
    ) -> "list[Future[Any]]":
        parcel = ray.put(pack((about, named)))  # once, however many get it
        not_there = lambda rank: failed(not_there_yet(self.places[rank].name))
        return [self._ask(rank, method, parcel) if rank in self._made else not_there(rank) for rank in ranks]

    def unpack(self, parcel: Any) -> Any:
        return unpack(parcel)

    def alive(self, rank: int) -> bool:
        return rank in self._made and rank not in self._dead

    def kill(self, rank: int) -> None:
        if rank in self._actors:
            ray.kill(self._actors[rank])

    def revive(self, rank: int) -> None:
        """Where it was, or if that node is gone, on devices of another. Ray hears of a worker's end before it knows
        that the whole node is gone: so it is tried again for a while."""
        self._made.discard(rank)
        self.kill(rank)
        until = time.monotonic() + REVIVE_S
        while True:
            place, alive = self.places[rank], self.cluster.nodes()
            if any(self.cluster.seats[device].node not in alive for device in place.devices):
                self.places[rank] = replace(place, devices=self._elsewhere(place, alive))
            try:
                self.start([rank])
                return
            except WorkerLost:
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def close(self) -> None:
        self._closing = True
        closed = [self._ask(rank, "close", pack(((), {}))) for rank in self._actors if self.alive(rank)]
        for future in closed:
            with suppress(Exception):
                future.result(LEAVE_S)
        for rank in self._actors:
            self.kill(rank)

    def _begin(self, place: Place) -> "Future[Any]":
        cluster, rank = self.cluster, place.rank
        seats = [cluster.seats[device] for device in place.devices]
        where = NodeAffinitySchedulingStrategy(seats[0].node, soft=False) if seats else "SPREAD"
        actor = ray.remote(WorkerActor).options(num_cpus=0, max_concurrency=AT_ONCE, scheduling_strategy=where).remote()
        with self._lock:
            self._actors[rank], self._numbers[rank] = actor, 0
            self._dead.discard(rank)
        actor.until_gone.remote().future().add_done_callback(lambda _: self._lost(place, actor))
        made: Future[Any] = Future()

        def shaken(hello: "Future[Any]") -> None:
            if hello.exception() is not None:
                made.set_exception(self._gone(place, hello.exception()))
            elif hello.result() != __version__:
                made.set_exception(other_version(place.name, hello.result()))
            else:
                ref = actor.make.remote(place, cluster.name, cluster.hub, cluster.lease_s, seats, *self._what)
                ref.future().add_done_callback(partial(self._tell, place, made))

        actor.hello.remote().future().add_done_callback(shaken)
        return made

    def _ask(self, rank: int, method: str, parcel: Any) -> "Future[Any]":
        told: Future[Any] = Future()
        with self._lock:
            number, self._numbers[rank] = self._numbers[rank], self._numbers[rank] + 1
            ref = self._actors[rank].call.remote(number, method, parcel)
        ref.future().add_done_callback(partial(self._tell, self.places[rank], told))
        return told

    def _tell(self, place: Place, told: "Future[Any]", done: "Future[Any]") -> None:
        if (error := done.exception()) is not None:
            told.set_exception(self._gone(place, error))
            return
        fine, value = done.result()
        told.set_result(value) if fine else told.set_exception(value)

    def _gone(self, place: Place, error: BaseException | None) -> BaseException:
        if error is None or not isinstance(error, RayActorError):
            return error or RuntimeError(f"Ray said nothing about {place.name}")
        if self._closing:
            return WorkerLost(place.name, "its cluster was closed")
        said = str(error).strip().splitlines()[0]
        return WorkerLost(
            place.name,
            f"Ray says: {said}; look at its node and its log (ray logs), then revive it or start the run again with "
            "--resume",
        )

    def _lost(self, place: Place, actor: Any) -> None:
        if self._actors.get(place.rank) is actor and not self._closing:
            self._dead.add(place.rank)
            self.cluster.hub.lost.remote(place.name)

    def _refuse_many_nodes(self, place: Place) -> None:
        nodes = {self.cluster.seats[device].node for device in place.devices}
        if len(nodes) > 1:
            raise UserError(
                f"{place.name} wants devices {list(place.devices)}, which are on {len(nodes)} nodes; a worker lives on "
                "one: give each node a worker of its own"
            )

    def _elsewhere(self, place: Place, alive: set[str]) -> tuple[int, ...]:
        """As many devices of one living node, those with the fewest workers."""
        used = [device for group in self.cluster._groups.values() for other in group.places for device in other.devices]
        by_node: dict[str, list[int]] = {}
        for device, seat in enumerate(self.cluster.seats):
            if seat.node in alive:
                by_node.setdefault(seat.node, []).append(device)
        fit = [
            sorted(some, key=used.count)[: len(place.devices)]
            for some in by_node.values()
            if len(some) >= len(place.devices)
        ]
        if not fit:
            raise WorkerLost(
                place.name,
                f"its node is gone, and no other has {len(place.devices)} devices; start the node again (ray start), "
                "or the run with fewer devices and --resume",
            )
        return tuple(min(fit, key=lambda devices: sum(map(used.count, devices))))
