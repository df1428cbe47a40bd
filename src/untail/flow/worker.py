"""Workers: objects that live in processes of their own, on devices of their own, and are called from anywhere.

    class Policy(Worker):
        def __init__(self, width): ...           # self.name, rank, world, devices are there already
        def act(self, seen): ...                 # plain methods run one at a time, in the order of the calls
        async def watch(self): ...               # async ones run side by side on the worker's event loop

    policies = cluster.group(Policy, 64, devices=[[0], [1]], name="policy")    # policy[0] on device 0, policy[1] on 1
    actions = policies.act(seen).wait()          # on all: a list, by rank; in async code: await policies.act(seen)
    action = await policies[0].act(seen)         # on one

Invariant: a call gives a `Handle` at once. It ends with the results, or with the first failure, which names the worker,
the method and the cause; a worker that dies ends every call to it with `WorkerLost` within seconds, and so does a call
to one that is being made anew. Arguments and results are pickled; tensors go through shared memory (or Ray's object
store) and arrive on the CPU.

Workers talk to each other over channels (pass one as an argument, or open it by name with `self.channel`) and by
`send` and `recv`. What several workers do on one device in turn is guarded by `self.lock()`.
"""

import asyncio
import inspect
import socket
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from untail.errors import UserError
from untail.flow.failures import FlowError, WorkerFailed
from untail.flow.handle import Handle, all_of, failed
from untail.flow.link import ClusterChannel, Link
from untail.flow.lock import DeviceLock


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker this is, and where."""

    group: str
    rank: int
    world: int
    devices: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.group}[{self.rank}]"


class Worker:
    """The base of all that runs in a process of its own. Nothing of it needs to be overridden."""

    _place: Place
    _link: Link

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def world(self) -> int:
        """How many workers its group has."""
        return self._place.world

    @property
    def devices(self) -> tuple[int, ...]:
        """The cluster's numbers of its devices. Inside the process they are cuda:0, 1, ..., or its pinned cores."""
        return self._place.devices

    def onload(self) -> None:
        """Bring what it needs onto its devices. Called before it runs, if it was offloaded."""

    def offload(self) -> None:
        """Take it off again: another worker needs the devices' memory."""

    def footprint(self) -> float:
        """Bytes that it holds on each of its devices while it is onloaded."""
        return 0.0

    def close(self) -> None:
        """The cluster ends."""

    def free_address(self) -> str:
        """host:port on this worker's host that nobody uses now: where a process group can meet."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return f"{_own_host()}:{port}"

    def channel(self, name: str, capacity: float | None = None) -> ClusterChannel[Any]:
        """The cluster's channel of this name; it is made if there is none yet. Not to be called on the event loop."""
        return self._link.channel(name, capacity)

    def lock(self, devices: Sequence[int] | None = None) -> DeviceLock:
        """On its own devices, or on these."""
        return self._link.lock(self.devices if devices is None else devices)

    def send(self, thing: Any, to: str, tag: str = "") -> Handle[None]:
        """To another worker, by its name: "policy[1]". It is on its way when this returns."""
        return self._mail(to).put(thing, (self.name, tag))

    def recv(self, sender: str, tag: str = "") -> Handle[Any]:
        """The next thing that the sender sent here under this tag."""
        return self._mail(self.name).get((sender, tag))

    def _mail(self, name: str) -> ClusterChannel[Any]:
        box = f"mail to {name}"
        self._link.ask("channel", "open", box, None)  # answered before anything that is asked after it
        return ClusterChannel(self._link.cluster, box)


def _own_host() -> str:
    """How other hosts reach this one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class Host:
    """Runs one worker's methods in its process: plain ones in turn on a thread, async ones on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "untail-worker")
        self.worker: Worker | None = None

    def make(self, place: Place, link: Link, load: Callable[[], tuple[type[Worker], Any]]) -> "Future[Any]":
        """The worker, on the thread that its methods will run on; `load` gives its class and arguments."""

        def make() -> None:
            cls, about = load()
            worker = cls.__new__(cls)
            worker._place, worker._link = place, link
            worker.__init__(*about)  # type: ignore[misc]
            self.worker = worker

        return self._told(place.name, "__init__", self._thread.submit(make))

    def run(self, method: str, load: Callable[[], Any], pack: Callable[[Any], Any]) -> "Future[Any]":
        """What the method gives, packed; `load` gives its arguments, at once."""
        assert self.worker is not None
        work = getattr(self.worker, method)
        try:
            about, named = load()
        except Exception as error:
            return failed(failure(self.worker.name, method, error))
        if inspect.iscoroutinefunction(work):
            return self._told(
                self.worker.name, method, asyncio.run_coroutine_threadsafe(work(*about, **named), self._loop), pack
            )
        return self._told(self.worker.name, method, self._thread.submit(work, *about, **named), pack)

    @staticmethod
    def _told(
        name: str, method: str, done: "Future[Any]", pack: Callable[[Any], Any] = lambda result: result
    ) -> "Future[Any]":
        """The result, packed, or a failure that says whose it is."""
        told: Future[Any] = Future()

        def tell(done: "Future[Any]") -> None:
            try:
                told.set_result(pack(done.result()))
            except BaseException as error:
                told.set_exception(failure(name, method, error))

        done.add_done_callback(tell)
        return told


def failure(name: str, method: str, error: BaseException) -> BaseException:
    """A worker's failure as its caller sees it."""
    if isinstance(error, UserError | FlowError):
        error.add_note(f"in {name}.{method}")
        return error
    wrapped = WorkerFailed(f"{name}.{method} failed: {type(error).__name__}: {error}")
    wrapped.add_note("".join(traceback.format_exception(error)))
    return wrapped


class Caller(Protocol):
    """What a backend has to give for the workers of one group."""

    def call(self, ranks: Sequence[int], method: str, about: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """One future per rank, of a parcel."""
        ...

    def unpack(self, parcel: Any) -> Any: ...

    def alive(self, rank: int) -> bool: ...

    def kill(self, rank: int) -> None: ...

    def revive(self, rank: int) -> None: ...


class _Calls:
    """Methods of the worker class, called on one or more of its workers."""

    def __init__(self, cls: type[Worker], name: str, caller: Caller, ranks: Sequence[int]):
        self._cls = cls
        self._name = name
        self._caller = caller
        self._ranks = ranks

    def __getattr__(self, method: str) -> Callable[..., Handle[Any]]:
        if not callable(getattr(self._cls, method, None)):
            raise AttributeError(f"{self._cls.__name__} has no method {method!r}")
        return lambda *about, **named: self._call(method, about, named)

    def _call(self, method: str, about: tuple[Any, ...], named: dict[str, Any]) -> Handle[Any]:
        futures = self._caller.call(self._ranks, method, about, named)
        unpack = self._caller.unpack
        return Handle(all_of(futures), f"{self._name}.{method}", convert=lambda parcels: [unpack(p) for p in parcels])


class OneWorker(_Calls):
    """One worker of a group: a call's result is its own."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_alive(self) -> bool:
        """It can be called: not one that is still being made."""
        return self._caller.alive(self._ranks[0])

    def kill(self) -> None:
        """At once, as a fault would."""
        self._caller.kill(self._ranks[0])

    def revive(self) -> None:
        """Another in the place of one that is lost, made from the same arguments; it has nothing of its state. Raises
        if there is no device for it."""
        self._caller.revive(self._ranks[0])

    def _call(self, method: str, about: tuple[Any, ...], named: dict[str, Any]) -> Handle[Any]:
        (future,) = self._caller.call(self._ranks, method, about, named)
        return Handle(future, f"{self._name}.{method}", convert=self._caller.unpack)


class WorkerGroup(_Calls):
    """All workers of one kind: a call's results are a list, by rank."""

    def __init__(self, cls: type[Worker], name: str, caller: Caller, devices: Sequence[Sequence[int]]):
        super().__init__(cls, name, caller, range(len(devices)))
        self.name = name
        self.devices = [tuple(each) for each in devices]

    def __getitem__(self, rank: int) -> OneWorker:
        if not 0 <= rank < len(self):
            raise IndexError(f"{self.name} has {len(self)} workers; there is no {self.name}[{rank}]")
        return OneWorker(self._cls, f"{self.name}[{rank}]", self._caller, [rank])

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Any:
        return (self[rank] for rank in range(len(self)))
