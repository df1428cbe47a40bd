"""The cluster of one machine: a process for each worker, pipes between them and the driver, tensors in shared memory.

Invariant: processes are spawned, never forked. A worker ends with its pipe: when the driver is gone, so are its
workers; when a worker is gone, the driver hears of it at once. Without GPUs a device is one of the cores that this
process may use.
"""

import multiprocessing
import os
import pickle
import shutil
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from untail import __version__
from untail.errors import UserError
from untail.flow import shelf
from untail.flow.cluster import check_count, check_devices
from untail.flow.failures import VersionMismatch, WorkerLost, not_there_yet
from untail.flow.handle import all_of, failed
from untail.flow.hub import Hub
from untail.flow.link import ClusterChannel, Link
from untail.flow.lock import LEASE_S, DeviceLock
from untail.flow.peer import Peer, Undo
from untail.flow.process import Start, main
from untail.flow.worker import Place, Worker, WorkerGroup

START_S = 300.0  # to import what the worker's class needs, on a machine that is busy
LEAVE_S = 5.0
DRIVER = "driver"


class LocalCluster:
    def __init__(self, devices: int | None = None, lease_s: float = LEASE_S):
        self._gpus = _gpus()
        self.on_gpus = self._gpus > 0
        self._cores = sorted(os.sched_getaffinity(0))
        there = self._gpus or len(self._cores)
        self.devices = list(range(check_count(devices, there, "machine")))
        self.name = uuid.uuid4().hex
        self.lease_s = lease_s
        folder, self._folder_lock = shelf.make_folder()
        self.shelf = shelf.Shelf(folder)
        self.hub = Hub(lease_s)
        self.link = Link(self.name, DRIVER, _AtHome(self.hub, self.shelf), lease_s)
        self._groups: dict[str, _Processes] = {}

    def group(self, cls: type[Worker], *about: Any, devices: Sequence[Sequence[int]], name: str) -> WorkerGroup:
        check_devices(name, devices, self.devices)
        if name in self._groups:
            raise UserError(f"there is a group {name!r} already; give this one another name")
        workers = _Processes(self, cls, about, devices, name)
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

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self.hub.close()
        self.link.close()
        shutil.rmtree(self.shelf.folder, ignore_errors=True)
        self._folder_lock.close()

    def seat(self, devices: Sequence[int]) -> tuple[list[int], list[int]]:
        """The GPUs, or else the cores, that these devices are."""
        return (list(devices), []) if self._gpus else ([], [self._cores[device] for device in devices])


class _AtHome:
    """The driver's own way to the hub: no way at all."""

    def __init__(self, hub: Hub, shelf: shelf.Shelf):
        self.hub = hub
        self.pack, self.unpack, self.drop = shelf.pack, shelf.unpack, shelf.drop

    def ask_hub(self, kind: str, method: str, about: tuple[Any, ...], undo: Undo | None = None) -> "Future[Any]":
        return self.hub.ask(DRIVER, kind, method, about)


class _Processes:
    """The workers of one group, as the driver sees them."""

    def __init__(
        self,
        cluster: LocalCluster,
        cls: type[Worker],
        about: tuple[Any, ...],
        devices: Sequence[Sequence[int]],
        name: str,
    ):
        self.cluster = cluster
        self.places = [Place(name, rank, len(devices), tuple(each)) for rank, each in enumerate(devices)]
        self._what = pickle.dumps(cls), cluster.shelf.pack(about)
        self._processes: dict[int, BaseProcess] = {}
        self._peers: dict[int, Peer] = {}
        self._made: set[int] = set()  # whose workers can be called, if their processes live
        self._closing = False
        self._asking = threading.Lock()

    def start(self, ranks: Sequence[int]) -> None:
        """All at once; if one cannot be made, none is left."""
        try:
            made = [self._spawn(self.places[rank]) for rank in ranks]
            all_of(made).result(START_S)
            self._made.update(ranks)
        except BaseException:
            for rank in ranks:
                self.kill(rank)
            raise

    def call(
        self, ranks: Sequence[int], method: str, about: tuple[Any, ...], named: dict[str, Any]
    ) -> "list[Future[Any]]":
        parcel = self.cluster.shelf.pack((about, named))
        futures = [self._ask(rank, ("call", method, parcel)) for rank in ranks]
        all_of(futures).add_done_callback(lambda _: _when_all(futures, lambda: self.cluster.shelf.drop(parcel)))
        return futures

    def _ask(self, rank: int, body: Any) -> "Future[Any]":
        return self._peers[rank].ask(body) if rank in self._made else failed(not_there_yet(self.places[rank].name))

    def unpack(self, parcel: Any) -> Any:
        return self.cluster.shelf.unpack(parcel)

    def alive(self, rank: int) -> bool:
        return rank in self._made and self._ended(self._processes[rank], 0) is None

    def kill(self, rank: int) -> None:
        process = self._processes.get(rank)  # by the time it has ended, another may have its place
        if process is not None:
            process.kill()
            self._ended(process, LEAVE_S)

    def revive(self, rank: int) -> None:
        self._made.discard(rank)
        self.kill(rank)
        self.start([rank])

    def close(self) -> None:
        self._closing = True
        closed = [peer.ask(("close",)) for peer in self._peers.values()]
        for future in closed:
            with suppress(Exception):
                future.result(LEAVE_S)
        for rank, process in self._processes.items():
            self._peers[rank].ask(("exit",))
            self._ended(process, LEAVE_S)
            self.kill(rank)
        self.cluster.shelf.drop(self._what[1])

    def _spawn(self, place: Place) -> "Future[Any]":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        gpus, cores = self.cluster.seat(place.devices)
        start = Start(place, self.cluster.name, str(self.cluster.shelf.folder), gpus, cores, self.cluster.lease_s)
        process = context.Process(target=main, args=(theirs, start), name=place.name, daemon=True)
        process.start()
        theirs.close()
        self._processes[place.rank] = process
        peer = self._peers[place.rank] = self._peer(ours, place)
        peer.start()
        return _then_make(peer, place, self._what)

    def _peer(self, pipe: Connection, place: Place) -> Peer:
        hub = self.cluster.hub
        process = self._processes[place.rank]
        return Peer(
            pipe,
            serve=lambda body: hub.ask(place.name, *body),
            lost=lambda: hub.lost(place.name),
            gone=lambda: WorkerLost(place.name, self._why(process)),
        )

    def _ended(self, process: BaseProcess, timeout: float | None) -> int | None:
        """Its exit code; of two threads that ask at once, one would be told that there is none."""
        with self._asking:
            process.join(timeout)
            return process.exitcode

    def _why(self, process: BaseProcess) -> str:
        if self._closing:
            return "its cluster was closed"
        code = self._ended(process, 1.0)
        how = f"it was killed by signal {-code}" if code is not None and code < 0 else f"it exited with {code}"
        return (
            f"{how} (process {process.pid}; signal 9 often means that memory ran out); look at its output, then "
            "revive it or start the run again with --resume"
        )


def _then_make(peer: Peer, place: Place, what: tuple[bytes, Any]) -> "Future[Any]":
    """Shake hands, then have the worker made."""
    made: Future[Any] = Future()

    def shaken(hello: "Future[Any]") -> None:
        if (error := hello.exception()) is not None:
            made.set_exception(error)
        elif hello.result() != __version__:
            made.set_exception(other_version(place.name, hello.result()))
        else:
            peer.ask(("make", *what)).add_done_callback(finish)

    def finish(done: "Future[Any]") -> None:
        error = done.exception()
        made.set_result(None) if error is None else made.set_exception(error)

    peer.ask(("hello",)).add_done_callback(shaken)
    return made


def other_version(name: str, version: str) -> VersionMismatch:
    return VersionMismatch(
        f"worker {name} runs untail {version}, and its driver {__version__}; install the same version on every host"
    )


def _when_all(futures: "list[Future[Any]]", then: Any) -> None:
    """Also those that come after the first failure."""
    left = [future for future in futures if not future.done()]
    if left:
        left[0].add_done_callback(lambda _: _when_all(left, then))
    else:
        then()


def _gpus() -> int:
    if shutil.which("nvidia-smi") is None:  # where there is no driver, torch need not be asked
        return 0
    import torch

    return torch.cuda.device_count()
