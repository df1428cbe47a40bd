"""Context switching: groups of workers that share devices take turns on them (9.3).

    turns = Turns(cluster, capacity=60e9)            # bytes that a device has; unset: only one group fits at a time
    figures = await turns.run(learners, "update", batch)

Invariant: a group runs only while it holds the lock on all its devices, and is onloaded while it runs. It is offloaded
when somebody else needs the memory, and not before: workers that fit together stay, and switching between them costs
nothing but the lock. A group whose worker died is forgotten: what it held went with it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from untail.flow.cluster import Cluster
from untail.flow.failures import WorkerLost
from untail.flow.worker import WorkerGroup


@dataclass
class _Resident:
    """A group that is onloaded, and the bytes that it holds on each of its devices."""

    group: WorkerGroup
    size: float

    @property
    def devices(self) -> set[int]:
        return {device for each in self.group.devices for device in each}


class Turns:
    def __init__(self, cluster: Cluster, capacity: float = 0.0):
        """`capacity` is what one device can hold of those who declare a `footprint`."""
        self.capacity = capacity
        self._cluster = cluster
        self._residents: dict[str, _Resident] = {}  # by group; who ran last is last
        self.switches = 0  # onloads so far

    async def run(self, group: WorkerGroup, method: str, *about: Any, **named: Any) -> list[Any]:
        """The method on all workers of the group, once it is their turn."""
        async with self.of(group):
            results: list[Any] = await getattr(group, method)(*about, **named)
            return results

    @asynccontextmanager
    async def of(self, group: WorkerGroup) -> AsyncIterator[None]:
        """The group's turn: as long as this lasts, nobody else runs on its devices."""
        async with self._cluster.lock(sorted({device for each in group.devices for device in each})):
            await self._bring_on(group)
            try:
                yield
            except WorkerLost:
                self._residents.pop(group.name, None)
                raise

    async def leave(self, group: WorkerGroup) -> None:
        """Off its devices, if it is on them. Pre: it is its turn, or nobody else's."""
        if self._residents.pop(group.name, None) is not None:
            with suppress(WorkerLost):  # what it held went with it
                await group.offload()

    async def _bring_on(self, group: WorkerGroup) -> None:
        resident = self._residents.pop(group.name, None)
        if resident is None:
            size = max(await group.footprint())
            resident = _Resident(group, size)
            for other in self._in_the_way(resident):
                await self.leave(other.group)
            await group.onload()
            self.switches += 1
        self._residents[group.name] = resident

    def _in_the_way(self, newcomer: _Resident) -> Sequence[_Resident]:
        """Those who must go so that every device holds the newcomer: the ones that have not run for longest first."""
        gone: list[_Resident] = []
        for device in newcomer.devices:
            there = [resident for resident in self._residents.values() if device in resident.devices]
            held = newcomer.size + sum(resident.size for resident in there if resident not in gone)
            for resident in there:
                if resident not in gone and (held > self.capacity or not self.capacity):
                    gone.append(resident)
                    held -= resident.size
        return gone
