"""The search behind the planner: of all ways to run a flow graph on N devices, the fastest.

A part of the graph is cut in two, of which nothing leads from the second to the first, in every way there is. The two
run, and each of them again in the same ways,

  in turn        on the same devices: T_s + T_t; where they do not fit there together, each role is loaded for its turn
                 and taken off after it;
  side by side   on N_s + N_t = N, in portions of m of the M items: T_critical + (M / m - 1) T_bottleneck of a portion;
                 where the first portion is late (`Cost.late_s`), the second half works on all that follow it.

A loop of r rounds is cut like any part: a portion's next round begins when its last is over. In a steady state the next
batch begins before this one is learned from: what runs side by side then takes as long as its slower half.

Invariant: nothing is left out that could be faster. A part may leave devices idle, so that it never takes longer with
more of them; a number of devices that makes a half no faster than one fewer need not be tried: the other half can have
that device.
"""

import math
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from untail.flow.plan import Kind
from untail.flow.work import Work

State = Literal["resident", "swapped", "steady"]
"""A part has its devices for itself; it is loaded for its turn; it has them, and batches overlap."""
Floats = npt.NDArray[np.float64]
Late = tuple[Floats, Floats]
"""When the first portion leaves the first half, and what one takes in the second."""
BOTH: frozenset[Kind] = frozenset({"in turn", "side by side"})


class Cut(NamedTuple):
    halves: tuple[int, int]
    leads: bool  # what the first makes, the second needs
    apart_s: float  # an item, if each has its own devices


class Staircase:
    """Seconds by the number of devices, which never rise; `steps`: the numbers at which they fall."""

    def __init__(self, values: Floats):
        self.values = values
        self.steps = np.flatnonzero(values < np.concatenate(([math.inf], values[:-1])))
        self._padded = np.concatenate((np.full(len(values) - 1, math.inf), values))

    def shifted(self, counts: npt.NDArray[np.int_]) -> Floats:
        """[count, n]: the seconds with n - count devices, where there is such a number."""
        width = len(self.values)
        stride = self._padded.strides[0]
        rows = np.lib.stride_tricks.as_strided(self._padded, (width, width), (stride, stride), writeable=False)
        return rows[width - 1 - counts]


class Search:
    """Parts are bit masks over the nodes; a loop's nodes stay together until it is the loop that is cut. Seconds are
    arrays [size, devices from 0 to N]."""

    def __init__(self, work: Work, kinds: Collection[Kind] = BOTH):
        self.work, self.kinds, self.sizes = work, kinds, work.sizes
        self.names = [name for stage in work.graph.stages for name in stage.members]
        self.whole = (1 << len(self.names)) - 1
        bit = {name: 1 << place for place, name in enumerate(self.names)}
        stages = {sum(bit[name] for name in stage.members): stage.rounds for stage in work.graph.stages}
        self._stages = list(stages)
        self.rounds = {mask: rounds for mask, rounds in stages.items() if rounds is not None}
        follows = work.graph.follows
        self._after = {bit[a]: sum(bit[b] for b in self.names if follows(a, b)) for a in self.names}
        self._edges = [(bit[edge.source], bit[edge.target], edge.apart_s) for edge in work.graph.edges]
        self._seconds: dict[int, Floats] = {}
        self._memory: dict[int, Floats] = {}
        self._loads: dict[int, Floats] = {}
        self._late: dict[int, Floats] = {}
        for name in self.names:
            self._measure(bit[name], name)
        self._values: dict[tuple[int, State], Floats] = {}
        self._curves: dict[tuple[int, int], Staircase] = {}
        self._load_curves: dict[int, Staircase] = {}
        self._late_curves: dict[tuple[int, int], Staircase] = {}
        self._cuts: dict[int, list[Cut]] = {}

    def _measure(self, node: int, name: str) -> None:
        cost, counts = self.work.costs[name], range(1, self.work.devices + 1)
        if self.work.graph.nodes[name].on_host:
            seconds = np.array([[cost.seconds(1, size)] * (len(counts) + 1) for size in self.sizes])
            memory, load = np.zeros_like(seconds), np.zeros(len(counts) + 1)
        else:
            seconds = np.array([[math.inf, *(cost.seconds(n, size) for n in counts)] for size in self.sizes])
            memory = np.array([[math.inf, *(cost.memory_gib(n, size) for n in counts)] for size in self.sizes])
            load = np.minimum.accumulate([math.inf, *map(cost.swap_s, counts)])
            seconds[memory > self.work.memory_gib] = math.inf
        late = np.array([[0.0, *(cost.late_s(n, size) for n in counts)] for size in self.sizes])
        late[:, 0] = late[:, 1]
        self._seconds[node], self._memory[node], self._loads[node] = seconds, memory, load
        self._late[node] = np.minimum.accumulate(late, axis=1)

    # ---- parts ------------------------------------------------------------------------------------------------

    def cuts(self, part: int) -> list[Cut]:
        if part not in self._cuts:
            units = [stage for stage in self._stages if stage & part == stage and part not in self.rounds]
            if sum(units) != part:  # a loop, or what is within one
                units = list(_bits(part))
            found = [0]
            for unit in units:  # in an order in which they can run
                found += [half | unit for half in found if not self._leads(part & ~half & ~unit, unit)]
            self._cuts[part] = [self._cut(half, part & ~half) for half in found if half not in (0, part)]
        return self._cuts[part]

    def _cut(self, first: int, second: int) -> Cut:
        crossing = [s for a, b, s in self._edges if (a & first and b & second) or (a & second and b & first)]
        return Cut((first, second), self._leads(first, second), math.fsum(crossing) / self.work.batch)

    def _leads(self, first: int, second: int) -> bool:
        return any(self._after[bit] & second for bit in _bits(first))

    def is_node(self, part: int) -> bool:
        return part in self._seconds

    def load(self, part: int) -> Staircase:
        """Seconds to load all its roles on the same devices, and to take them off."""
        if part not in self._load_curves:
            self._load_curves[part] = Staircase(np.sum([self._loads[bit] for bit in _bits(part)], axis=0))
        return self._load_curves[part]

    def late(self, part: int, row: int) -> Staircase:
        """How late the first portion of a size leaves it: as late as the latest of its roles."""
        if (part, row) not in self._late_curves:
            self._late_curves[part, row] = Staircase(np.max([self._late[bit][row] for bit in _bits(part)], axis=0))
        return self._late_curves[part, row]

    def fits(self, part: int) -> npt.NDArray[np.bool_]:
        """All its roles at once on the same devices."""
        held = np.sum([self._memory[bit] for bit in _bits(part)], axis=0)
        return np.asarray(held <= self.work.memory_gib)

    # ---- seconds of a part, for all sizes and device counts at once --------------------------------------------

    def values(self, part: int, state: State) -> Floats:
        key = part, state
        if key not in self._values:
            found = self._of_node(part, state) if self.is_node(part) else self._of_parts(part, state)
            self._values[key] = np.minimum.accumulate(found, axis=1)
        return self._values[key]

    def _of_node(self, node: int, state: State) -> Floats:
        seconds = self._seconds[node] * self.rounds.get(node, 1)
        return seconds + self._loads[node] if state == "swapped" else seconds

    def _of_parts(self, part: int, state: State) -> Floats:
        if state == "swapped" and part in self.rounds:  # loaded for all rounds
            return self.values(part, "resident") + self.load(part).values
        if state == "steady":
            best = self.values(part, "resident").copy()
            if "side by side" in self.kinds and part not in self.rounds:
                for cut in self.cuts(part):
                    np.minimum(best[-1], self._overlapped(cut), out=best[-1])
            return best
        best = np.full((len(self.sizes), self.work.devices + 1), math.inf)
        for cut in self.cuts(part):
            if "in turn" in self.kinds:
                np.minimum(best, self.in_turn(part, cut, state), out=best)
            if "side by side" in self.kinds:
                for row in range(len(self.sizes)):
                    self._split(part, cut, state, row, best)
        return best

    def in_turn(self, part: int, cut: Cut, state: State) -> Floats:
        (first, second), rounds, fits = cut.halves, self.rounds.get(part, 1), self.fits(part)
        if state == "swapped" or not fits.any():
            return rounds * (self.values(first, "swapped") + self.values(second, "swapped"))
        resident = rounds * (self.values(first, "resident") + self.values(second, "resident"))
        if fits[:, 1:].all():
            return resident
        return np.where(fits, resident, rounds * (self.values(first, "swapped") + self.values(second, "swapped")))

    def _split(self, part: int, cut: Cut, state: State, row: int, best: Floats) -> None:
        """Side by side in portions of one size, for every batch that it divides."""
        curves = [self._curve(half, row) for half in cut.halves]
        loads = [self.load(half) for half in cut.halves] if state == "swapped" else []
        counts = [curve.steps for curve in curves]
        if loads:
            counts = [np.union1d(*both) for both in zip(counts, (load.steps for load in loads), strict=True)]
        late = self.late(cut.halves[0], row)
        counts[0] = np.union1d(counts[0], late.steps)
        few = int(len(counts[1]) < len(counts[0]))
        own, rest = curves[few].values[counts[few]][:, None], curves[1 - few].shifted(counts[few])
        slower = np.maximum(own, rest)
        critical = own + rest if cut.leads else slower
        waits: Late | None = None
        if cut.leads and late.values.any():
            waits = (late.shifted(counts[1]) + rest, own) if few else (late.values[counts[0]][:, None] + own, rest)
        if loads:
            extra = np.maximum(loads[few].values[counts[few]][:, None], loads[1 - few].shifted(counts[few]))
        for whole, size in enumerate(self.sizes):
            if size % self.sizes[row] == 0:
                portions = size // self.sizes[row]
                total = pipelined(critical, slower, portions, self.rounds.get(part, 1), waits)
                fastest = np.minimum.reduce(total + extra if loads else total, axis=0, initial=math.inf)
                np.minimum(best[whole], fastest + cut.apart_s * size, out=best[whole])

    def _overlapped(self, cut: Cut) -> Floats:
        one, other = (Staircase(self.values(half, "steady")[-1]) for half in cut.halves)
        slower = np.maximum(one.values[one.steps][:, None], other.shifted(one.steps))
        return np.asarray(slower.min(axis=0, initial=math.inf) + cut.apart_s * self.work.batch)

    def _curve(self, part: int, row: int) -> Staircase:
        if (part, row) not in self._curves:
            self._curves[part, row] = Staircase(self.values(part, "resident")[row])
        return self._curves[part, row]


def pipelined(critical: Floats, slower: Floats, portions: int, rounds: int, late: Late | None = None) -> Floats:
    """So many portions through two halves, so many times; a round of a portion begins when its last is over. `late`:
    the first half is, and the second has all portions to do from then on."""
    once = critical + (portions - 1) * slower if portions > 1 else critical
    if portions > 1 and late is not None:
        once = np.maximum(once, late[0] + portions * late[1])
    return once + (rounds - 1) * np.maximum(critical, portions * slower) if rounds > 1 else once


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
