"""A worker's process on this machine.

Invariant: it is on its devices before anything of torch runs. It ends when its pipe to the driver ends, whatever it is
doing.
"""

import asyncio
import os
import pickle
import signal
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from untail import __version__
from untail.flow import interpreter
from untail.flow.failures import FlowError
from untail.flow.handle import finished
from untail.flow.link import Link
from untail.flow.peer import Peer, Undo
from untail.flow.shelf import Shelf
from untail.flow.worker import Host, Place


@dataclass(frozen=True)
class Start:
    """What a process needs to know to begin."""

    place: Place
    cluster: str
    shelf: str
    gpus: list[int]
    cores: list[int]
    lease_s: float


def settle_on(gpus: list[int], cores: list[int], threads: int) -> None:
    """What every worker's process begins with, here and on Ray: it uses these GPUs, or these cores, and nothing else,
    and collects garbage as seldom as the driver does."""
    interpreter.tune()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if cores:
        os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def main(pipe: Connection, start: Start) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the driver's: it decides when workers leave
    settle_on(start.gpus, start.cores, max(1, len(start.cores)))
    asyncio.run(_Process(pipe, start).run())


class _Process:
    def __init__(self, pipe: Connection, start: Start):
        self.start = start
        self.shelf = Shelf(Path(start.shelf))
        gone = lambda: FlowError("the driver is gone")
        self.peer = Peer(pipe, self._serve, lost=lambda: os._exit(1), gone=gone)
        self.pack, self.unpack, self.drop = self.shelf.pack, self.shelf.unpack, self.shelf.drop

    async def run(self) -> None:
        self.host = Host(asyncio.get_running_loop())
        self.link = Link(self.start.cluster, self.start.place.name, self, self.start.lease_s)
        self.peer.start()
        await asyncio.Event().wait()

    def ask_hub(self, kind: str, method: str, about: tuple[Any, ...], undo: Undo | None = None) -> "Future[Any]":
        return self.peer.ask((kind, method, about), undo)

    def _serve(self, body: Any) -> "Future[Any]":
        kind, *about = body
        if kind == "hello":
            return finished(__version__)
        if kind == "make":
            load = lambda: (pickle.loads(about[0]), self.shelf.unpack(about[1], keep=True))
            return self.host.make(self.start.place, self.link, load)
        if kind == "close":
            return finished(None) if self.host.worker is None else self.host.run("close", lambda: ((), {}), self.pack)
        if kind == "exit":
            os._exit(0)  # whatever runs: threads of methods that never end do not keep it
        method, parcel = about
        return self.host.run(method, lambda: self.shelf.unpack(parcel, keep=True), self.shelf.pack)
