"""What a role takes: seconds and memory, as a function of its devices and of the items it is given.

Invariant: an estimate comes from what was measured. Items are shared out evenly, so that what counts is the load, the
items of the fullest device; between two loads that were measured the figure lies between theirs, and so it does
between two device counts. More items never take less.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from untail.errors import DataError
from untail.flow.lending import seconds_with_late

Seconds = npt.NDArray[np.float64]


class Cost(Protocol):
    def seconds(self, devices: int, items: int) -> float: ...

    def memory_gib(self, devices: int, items: int) -> float:
        """Of each device, while it is loaded."""
        ...

    def swap_s(self, devices: int) -> float:
        """To load it and to take it off again."""
        ...

    def late_s(self, devices: int, items: int) -> float:
        """How much later than its share of a batch's seconds the first portion of so many items leaves it."""
        return 0.0


class Borrower(Cost, Protocol):
    """A role that runs on devices which others let wait, too."""

    def lent_seconds(self, devices: int, late: int, after_s: float) -> float:
        """Of a whole batch, if so many of its devices come only after they were needed elsewhere for so long."""
        ...


class Curve:
    """Linear between what was measured. Beyond the last point it goes on as steeply as before it, or in proportion if
    there is no other; below the first it is never less than its share in it. It never falls."""

    FAR = 1e9

    def __init__(self, points: Iterable[tuple[float, float]]):
        """Pre: at least one point. Several at one place count as their mean."""
        at: dict[float, list[float]] = {}
        for x, y in points:
            at.setdefault(float(x), []).append(float(y))
        xs = sorted(at)
        ys = np.maximum.accumulate([math.fsum(at[x]) / len(at[x]) for x in xs]).tolist()
        few = len(xs) == 1
        first = ys[0] / xs[0] if few else (ys[1] - ys[0]) / (xs[1] - xs[0])
        last = ys[0] / xs[0] if few else (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        origin = [(0.0, max(0.0, ys[0] - xs[0] * first))] if xs[0] else []
        self._xs = [*(x for x, _ in origin), *xs, self.FAR]
        self._ys = [*(y for _, y in origin), *ys, ys[-1] + (self.FAR - xs[-1]) * last]

    def __call__(self, x: float) -> float:
        return float(np.interp(x, self._xs, self._ys))

    def many(self, xs: npt.NDArray[np.int_]) -> npt.NDArray[np.float64]:
        return np.interp(xs, self._xs, self._ys)


class Point(NamedTuple):
    """One measurement."""

    devices: int
    items: int
    seconds: float
    memory_gib: float = 0.0


class Profiled(Cost):
    """A role that was measured at a few points."""

    def __init__(self, points: Sequence[Point], swap_s: float = 0.0):
        for point in points:
            if not (point.devices >= 0 and point.items >= 1 and _is_amount(point.seconds, point.memory_gib)):
                raise DataError(f"the measurement {point} cannot be: devices and items count things, seconds take time")
        if not points:
            raise DataError("a role without measurements has no cost; measure it at one point at least")
        self.points = list(points)
        self._swap_s = swap_s
        self._counts = sorted({max(1, point.devices) for point in points})
        self._logs = np.log(self._counts)
        self._seconds = [self._curve(count, "seconds") for count in self._counts]
        self._memory = [self._curve(count, "memory_gib") for count in self._counts]
        self._places: dict[int, float] = {}  # of device counts, among those that were measured
        self._known: dict[tuple[float, int], tuple[float, float]] = {}

    def seconds(self, devices: int, items: int) -> float:
        return self._at(devices, items)[0]

    def memory_gib(self, devices: int, items: int) -> float:
        return self._at(devices, items)[1]

    def swap_s(self, devices: int) -> float:
        return self._swap_s

    def _at(self, devices: int, items: int) -> tuple[float, float]:
        """Between two device counts, in proportion to the logarithm; outside of what was measured, the nearest."""
        devices = max(1, devices)
        if devices not in self._places:
            self._places[devices] = float(np.interp(math.log(devices), self._logs, range(len(self._counts))))
        load, place = -(-items // devices), self._places[devices]
        if (place, load) not in self._known:
            low, share = int(place), place % 1
            high = min(low + 1, len(self._counts) - 1)
            seconds = (1 - share) * self._seconds[low](load) + share * self._seconds[high](load)
            memory = (1 - share) * self._memory[low](load) + share * self._memory[high](load)
            self._known[place, load] = seconds, memory
        return self._known[place, load]

    def _curve(self, count: int, name: str) -> Curve:
        """Over the load, of one device count."""
        own = [point for point in self.points if max(1, point.devices) == count]
        values = [(-(-point.items // count), getattr(point, name)) for point in own]
        if name == "memory_gib" and len({load for load, _ in values}) == 1:
            most = max(gib for _, gib in values)
            return Curve([(0, most), (1, most)])  # what it holds, whatever its load
        return Curve(values)


def _is_amount(*values: float) -> bool:
    return all(0 <= value < math.inf for value in values)


def end_seconds(lengths: npt.ArrayLike, slots: int, tau: Curve) -> Seconds:
    """When each response is over on one device that writes responses of these lengths, `slots` at once, each as soon as
    one is free.

    A step gives every running response a token and takes tau(how many run). While there is more to start, all slots
    run; then, with the steps at which the last end sorted, T = sum of (F_j - F_(j-1)) tau(still running).
    """
    every = np.asarray(lengths, dtype=float)
    steps = every.copy()
    running = list(every[:slots])
    full_until = 0.0
    heapq.heapify(running)
    for place, length in enumerate(every[slots:], slots):
        full_until = running[0]
        steps[place] = full_until + length
        heapq.heapreplace(running, steps[place])
    finish = np.sort(np.maximum(np.asarray(running), full_until))
    gaps = np.diff(finish, prepend=full_until)
    alive = np.arange(len(finish), 0, -1)
    full_s = full_until * tau(min(slots, len(finish)))
    seconds = full_s + np.cumsum(gaps * tau.many(alive))
    return np.interp(steps, [0.0, full_until, *finish], [0.0, full_s, *seconds])


@dataclass(frozen=True)
class Rollout(Cost):
    """Rollout, with the tail in it. An item is a group. Groups leave as they finish, and slots that they free take the
    next ones: a part of the batch takes its part of the whole. But the first ones leave late: all run at once, and a
    group is whole when its longest response is."""

    lengths: Sequence[int]  # of responses, as they come
    tau: Curve  # seconds of a decode step, by how many run in it
    group: int  # responses of an item
    slots: int  # of a device
    batch: int  # items of a whole step
    prefill_s: float = 0.0  # of a response's prompt
    gib: float = 0.0  # weights and KV pool
    load_s: float = 0.0  # to onload and offload them
    _known: dict[int, Seconds] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.lengths) or min(self.lengths) < 1:
            raise DataError(
                "a rollout needs the lengths of responses, each at least 1; give a run that has finished some"
            )

    def seconds(self, devices: int, items: int) -> float:
        return float(self._ends(devices)[-1]) * items / self.batch

    def late_s(self, devices: int, items: int) -> float:
        ends = self._ends(devices)
        first = ends[min(len(ends), -(-items // max(1, devices))) - 1]
        return max(0.0, float(first) - self.seconds(devices, items))

    def memory_gib(self, devices: int, items: int) -> float:
        return self.gib

    def swap_s(self, devices: int) -> float:
        return self.load_s

    def lent_seconds(self, devices: int, late: int, after_s: float) -> float:
        """In proportion to what it takes with all of them. What was begun on devices that it has to leave at once was
        begun for nothing."""
        begun = min(self.slots, len(self._expected) / devices) * self.prefill_s
        shuffled = np.random.default_rng(0).permutation(self._expected).tolist()
        with_all, with_late = (
            seconds_with_late(shuffled, self.slots, self.tau, devices, late, after) for after in (0.0, after_s + begun)
        )
        return float(self.seconds(devices, self.batch) * with_late / with_all)

    def _ends(self, devices: int) -> Seconds:
        """When the groups of the fullest device are whole, the first one first. It has the longest response of all, and
        of every `devices` further ones the longest. They come in no order: who is long is not known."""
        if devices not in self._known:
            own = self._expected[:: max(1, devices)]
            shuffled = np.random.default_rng(0).permutation(own)
            ends = end_seconds(shuffled, self.slots, self.tau) + len(own) * self.prefill_s
            self._known[devices] = np.sort(np.maximum.reduceat(ends, np.arange(0, len(ends), self.group)))
        return self._known[devices]

    @cached_property
    def _expected(self) -> npt.NDArray[np.float64]:
        """The lengths of a whole batch, the longest first: each place's mean over the batches that there were. Who is
        long is not alone: a prompt's responses are, so that some batches have several of the longest and most none."""
        count = self.batch * self.group
        batches = len(self.lengths) // count
        if not batches:
            return np.quantile(self.lengths, (np.arange(count - 1, -1, -1) + 0.5) / count)
        latest = np.asarray(self.lengths[-batches * count :], dtype=float).reshape(batches, count)
        return np.asarray(np.sort(latest, axis=1)[:, ::-1].mean(axis=0))


@dataclass(frozen=True)
class Scaled(Cost):
    """A role that takes `factor` of what was measured."""

    cost: Cost
    factor: float

    def seconds(self, devices: int, items: int) -> float:
        return self.factor * self.cost.seconds(devices, items)

    def late_s(self, devices: int, items: int) -> float:
        return self.factor * self.cost.late_s(devices, items)

    def lent_seconds(self, devices: int, late: int, after_s: float) -> float:
        return self.factor * cast(Borrower, self.cost).lent_seconds(devices, late, after_s / self.factor)

    def memory_gib(self, devices: int, items: int) -> float:
        return self.cost.memory_gib(devices, items)

    def swap_s(self, devices: int) -> float:
        return self.cost.swap_s(devices)


@dataclass(frozen=True)
class ExchangeCost:
    """What ranks that share out items and weights (FSDP2) send each other: in every pass each gathers the weights that
    it lacks, forwards and backwards, and its gradients are summed."""

    gib: float  # of a pass, if a rank lacked everything
    items: float  # of a pass
    gib_s: float
    wait_s: float = 0.0  # for each other, in a pass

    def seconds(self, devices: int, items: int) -> float:
        if devices == 1:
            return 0.0
        passes = math.ceil(items / devices / self.items)
        return passes * (self.wait_s + self.gib * (devices - 1) / devices / self.gib_s)


@dataclass(frozen=True)
class RankedCost(Cost):
    """A role whose ranks work on one result. With more of them than it was measured with they exchange more; where it
    is not known how much, more are of no use."""

    cost: Cost
    measured: int  # the most devices
    exchange: ExchangeCost | None = None

    def seconds(self, devices: int, items: int) -> float:
        if self.exchange is None or devices <= self.measured:
            return self.cost.seconds(min(devices, self.measured), items)
        more = self.exchange.seconds(devices, items) - self.exchange.seconds(self.measured, items)
        return self.cost.seconds(devices, items) + max(0.0, more)

    def memory_gib(self, devices: int, items: int) -> float:
        return self.cost.memory_gib(devices if self.exchange else min(devices, self.measured), items)

    def swap_s(self, devices: int) -> float:
        return self.cost.swap_s(devices)


@dataclass(frozen=True)
class OneAfterOther(Cost):
    """Passes of one worker over the same items: their seconds add up, and it is loaded once, for the largest."""

    costs: Sequence[Cost]

    def seconds(self, devices: int, items: int) -> float:
        return math.fsum(cost.seconds(devices, items) for cost in self.costs)

    def memory_gib(self, devices: int, items: int) -> float:
        return max(cost.memory_gib(devices, items) for cost in self.costs)

    def swap_s(self, devices: int) -> float:
        return max(cost.swap_s(devices) for cost in self.costs)
