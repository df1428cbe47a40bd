"""A cluster: the devices there are, and the workers on them; here on one machine, or on many by Ray.

    with connect("local") as cluster:                       # or connect("ray", "10.0.0.1:6379"), connect("ray", "auto")
        group = cluster.group(Policy, 64, devices=[[0], [1]], name="policy")
        channel = cluster.channel("seen", capacity=64)      # any worker opens it by the same name

A device is a GPU; on a machine without GPUs, a core: workers are pinned to theirs. `cluster.devices` are their numbers.
Several workers may be placed on one device: what they do there in turn is guarded by `cluster.lock(devices)`. A worker
without devices ([]) runs on whatever core is free.

Invariant: the backend is the only difference. When the driver ends, in whichever way, all workers end.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

from untail.errors import UserError
from untail.flow.link import ClusterChannel, Link
from untail.flow.lock import LEASE_S, DeviceLock
from untail.flow.worker import Worker, WorkerGroup

W = TypeVar("W", bound=Worker)
Kind = Literal["local", "ray"]


class Cluster(Protocol):
    devices: list[int]
    on_gpus: bool
    link: Link
    """The driver's own: whatever a worker can do over its link, the driver can."""

    def group(self, cls: type[Worker], *about: Any, devices: Sequence[Sequence[int]], name: str) -> WorkerGroup:
        """One worker `cls(*about)` for each list of devices. Returns when all of them are there."""
        ...

    def channel(self, name: str, capacity: float | None = None) -> ClusterChannel[Any]: ...

    def lock(self, devices: Sequence[int]) -> DeviceLock: ...

    def alive(self) -> dict[str, bool]:
        """Every worker by its name, and whether it is alive."""
        ...

    def close(self) -> None: ...


@contextmanager
def connect(
    kind: Kind = "local", address: str | None = None, devices: int | None = None, lease_s: float = LEASE_S
) -> Iterator[Cluster]:
    """The cluster, closed in the end. `address` is Ray's; `devices`, how many are wanted (unset: all)."""
    cluster = make_cluster(kind, address, devices, lease_s)
    try:
        yield cluster
    finally:
        cluster.close()


def make_cluster(kind: Kind, address: str | None, devices: int | None, lease_s: float) -> Cluster:
    """The same, for who closes it himself."""
    if kind == "local":
        from untail.flow.local import LocalCluster

        if address is not None:
            raise UserError(f'flow.address = {address!r} is an address of Ray; set flow.backend = "ray", or drop it')
        return LocalCluster(devices, lease_s)
    if importlib.util.find_spec("ray") is None:
        raise UserError('flow.backend = "ray" needs Ray, which is not installed: pip install "untail[ray]"')
    from untail.flow.ray import RayCluster

    return RayCluster(address, devices, lease_s)


def check_devices(name: str, wanted: Sequence[Sequence[int]], known: Sequence[int]) -> None:
    """Every worker on devices that exist, and none twice on the same."""
    if not wanted:
        raise UserError(f"group {name!r} has no workers; give it one list of devices for each")
    for rank, devices in enumerate(wanted):
        missing = sorted(set(devices) - set(known))
        if missing:
            raise UserError(
                f"{name}[{rank}] wants device {missing[0]}, but there are {len(known)} ({_range(known)}); ask for "
                "fewer, or give the cluster more"
            )
        if len(set(devices)) < len(devices):
            raise UserError(f"{name}[{rank}] wants a device twice: {list(devices)}; name each once")


def check_count(wanted: int | None, there: int, kind: str) -> int:
    if wanted is not None and wanted > there:
        raise UserError(
            f"flow.devices = {wanted}, but this {kind} has {there}; ask for {there} or fewer, or add machines"
        )
    return there if wanted is None else wanted


def _range(devices: Sequence[int]) -> str:
    return "none" if not devices else f"{devices[0]} to {devices[-1]}"
