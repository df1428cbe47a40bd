"""The search behind the planner: of all ways to run a flow graph on N devices, the fastest.

A part of the graph is cut in two, of which nothing leads from the second to the first, in every way there is. The two
run, and each of them again in the same ways,

  in turn        on the same devices: T_s + T_t; where they do not fit there together, each role is loaded for its turn
                 and taken off after it;
  side by side   on N_s + N_t = N, in portions of m of the M items: T_critical + (M / m - 1) T_bottleneck of a portion;
                 where the first portion is late (`Cost.late_s`), the second half works on all that follow it.

A loop of r rounds is cut like any part: a portion's next round begins when its last is over. In a steady state the next
batch begins before this one is learned from: what runs side by side then takes as long as its slower half. There the
first half of the whole graph may borrow what the second lets wait, if it is a role that can (`Node.borrows`): both
begin together, and N_t of its N devices come when the second has done with them. Each time it makes way and comes back,
it is loaded; so is the second where both do not fit.

Invariant: nothing is left out that could be faster. A part may leave devices idle, so that it never takes longer with
more of them; a number of devices that makes a half no faster than one fewer need not be tried: the other half can have
that device. Halves of which neither leads to the other are one cut, whichever is called the first.
"""

import copy
import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from untail.flow.cost import Borrower
from untail.flow.plan import Kind
from untail.flow.work import Work

State = Literal["resident", "swapped", "steady"]
"""A part has its devices for itself; it is loaded for its turn; it has them, and batches overlap."""
Floats = npt.NDArray[np.float64]
Late = tuple[Floats, Floats]
"""When the first portion leaves the first half, and what one takes in the second."""
Counts = npt.NDArray[np.int_]
NEVER = 1e300  # seconds, of what cannot run; other than infinity it may be taken 0 times
ALL: frozenset[Kind] = frozenset({"in turn", "side by side", "lent"})


class Cut(NamedTuple):
    halves: tuple[int, int]
    leads: bool  # what the first makes, the second needs
    apart_s: float  # an item, if each has its own devices


class Staircase:
    """Seconds by the number of devices, which never rise; `steps`: the numbers at which they, or any of those `beside`
    them, fall."""

    def __init__(self, values: Floats, *beside: Floats):
        self.values = values
        self.steps = np.flatnonzero(np.logical_or.reduce([_falls(values), *map(_falls, beside)]))
        width, one = len(values), values.itemsize
        padded = np.concatenate((np.full(width - 1, math.inf), values))
        self._with_fewer: Floats = np.ndarray((width, width), values.dtype, padded.data, (width - 1) * one, (-one, one))

    def with_fewer(self, counts: Counts) -> Floats:
        """[count, n]: the seconds with n - count devices, where there is such a number."""
        return self._with_fewer[counts]


class Search:
    """Parts are bit masks over the nodes; a loop's nodes stay together until it is the loop that is cut. Seconds are
    arrays [size, devices from 0 to N]."""

    def __init__(self, work: Work):
        self.work, self.kinds, self.sizes = work, ALL, work.sizes
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
        sizes = np.array(self.sizes)
        self._wholes = [np.flatnonzero(sizes % size == 0) for size in sizes]  # for each size, those that it divides
        self._portions = [sizes[wholes] // size for wholes, size in zip(self._wholes, sizes, strict=True)]
        self._cuts: dict[int, list[Cut]] = {}
        self._fits: dict[int, npt.NDArray[np.bool_]] = {}
        self._load_curves: dict[int, Staircase] = {}
        self._late_curves: dict[tuple[int, int], Staircase] = {}
        self._may_swap = not self.fits(self.whole).all()
        self._forget()

    def only(self, kind: Kind) -> "Search":
        """The same, of nothing but one kind."""
        other = copy.copy(self)
        other.kinds = frozenset({kind})
        other._forget()
        return other

    def _forget(self) -> None:
        """What depends on the kinds."""
        self._values: dict[tuple[int, State], Floats] = {}
        self._curves: dict[tuple[int, int], Staircase] = {}
        self._beside: dict[int, Floats] = {}

    def _measure(self, node: int, name: str) -> None:
        cost, counts = self.work.costs[name], range(1, self.work.devices + 1)
        if self.work.graph.nodes[name].on_host:
            seconds = np.array([[cost.seconds(1, size)] * (len(counts) + 1) for size in self.sizes])
            memory, load = np.zeros_like(seconds), np.zeros(len(counts) + 1)
        else:
            seconds = np.array([[math.inf, *(cost.seconds(n, size) for n in counts)] for size in self.sizes])
            memory = np.array([[0.0, *(cost.memory_gib(n, size) for n in counts)] for size in self.sizes])
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
            cuts = [self._cut(half, part & ~half) for half in found if half not in (0, part)]
            self._cuts[part] = [cut for cut in cuts if cut.leads or cut.halves[0] < cut.halves[1]]
        return self._cuts[part]

    def _cut(self, first: int, second: int) -> Cut:
        crossing = [s for a, b, s in self._edges if (a & first and b & second) or (a & second and b & first)]
        return Cut((first, second), self._leads(first, second), math.fsum(crossing) / self.work.batch)

    def _leads(self, first: int, second: int) -> bool:
        return any(self._after[bit] & second for bit in _bits(first))

    def is_node(self, part: int) -> bool:
        return part in self._seconds

    def borrower(self, cut: Cut) -> Borrower | None:
        """The first half, if it can borrow devices of the second."""
        if not self.is_node(cut.halves[0]):
            return None
        name = self.names[cut.halves[0].bit_length() - 1]
        return cast(Borrower, self.work.costs[name]) if self.work.graph.nodes[name].borrows else None

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
        if part not in self._fits:
            held = np.sum([self._memory[bit] for bit in _bits(part)], axis=0)
            self._fits[part] = np.asarray(held <= self.work.memory_gib)
        return self._fits[part]

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
        if "in turn" in self.kinds:
            for cut in self.cuts(part):
                np.minimum(best, self.in_turn(part, cut, state), out=best)
        if "side by side" in self.kinds:
            np.minimum(best, self._side_by_side(part)[int(state == "swapped")], out=best)
        return best

    def in_turn(self, part: int, cut: Cut, state: State) -> Floats:
        (first, second), rounds, fits = cut.halves, self.rounds.get(part, 1), self.fits(part)
        if state == "swapped" or not fits[:, 1:].any():
            return rounds * (self.values(first, "swapped") + self.values(second, "swapped"))
        resident = rounds * (self.values(first, "resident") + self.values(second, "resident"))
        if fits.all():
            return resident
        return np.where(fits, resident, rounds * (self.values(first, "swapped") + self.values(second, "swapped")))

    def _side_by_side(self, part: int) -> Floats:
        """[state, size, devices]: the fastest of all cuts and portions; both halves on their devices already, and, if
        anything ever has to be, loaded for their turn."""
        if part not in self._beside:
            best = np.full((1 + self._may_swap, len(self.sizes), self.work.devices + 1), math.inf)
            for cut in self.cuts(part):
                for row, wholes in enumerate(self._wholes):
                    best[:, wholes] = np.minimum(best[:, wholes], self._split(part, cut, row))
            self._beside[part] = best
        return self._beside[part]

    def _split(self, part: int, cut: Cut, row: int) -> list[Floats]:
        """Of one cut in portions of one size, for every batch that it divides."""
        curves, loads = [self._curve(half, row) for half in cut.halves], [self.load(half) for half in cut.halves]
        few = int(len(curves[1].steps) < len(curves[0].steps))
        counts = curves[few].steps
        own, rest = curves[few].values[counts, None], curves[1 - few].with_fewer(counts)
        critical, slower = beside(own, rest, cut.leads)
        late, waits = self.late(cut.halves[0], row), None
        if cut.leads and late.values.any():
            waits = (late.with_fewer(counts) + rest, own) if few else (late.values[counts, None] + own, rest)
        portions = self._portions[row][:, None, None]
        found = [pipelined(critical, slower, portions, self.rounds.get(part, 1), waits)]  # [batch, count, devices]
        if self._may_swap:
            found.append(found[0] + np.maximum(loads[few].values[counts, None], loads[1 - few].with_fewer(counts)))
        apart = cut.apart_s * self.sizes[row] * portions[:, 0]
        return [seconds.min(axis=1, initial=math.inf) + apart for seconds in found]

    def _overlapped(self, cut: Cut) -> Floats:
        one, other = (Staircase(self.values(half, "steady")[-1]) for half in cut.halves)
        slower = np.maximum(one.values[one.steps, None], other.with_fewer(one.steps))
        return np.asarray(slower.min(axis=0, initial=math.inf) + cut.apart_s * self.work.batch)

    def _curve(self, part: int, row: int) -> Staircase:
        """Of one size. A number of devices that lets its first portion come sooner is a step too, and one that makes
        loading faster, where a part may have to be loaded."""
        if (part, row) not in self._curves:
            others = [self.late(part, row).values, *([self.load(part).values] if self._may_swap else [])]
            self._curves[part, row] = Staircase(self.values(part, "resident")[row], *others)
        return self._curves[part, row]


def beside(one: Floats, other: Floats, leads: bool) -> tuple[Floats, Floats]:
    """Of a portion: the critical path through two halves, infinite where one of them cannot run, and the slower half,
    which is always finite."""
    slower = np.maximum(one, other)
    return one + other if leads else slower, np.minimum(slower, NEVER)


def pipelined(
    critical: Floats, slower: Floats, portions: int | Counts, rounds: int, late: Late | None = None
) -> Floats:
    """So many portions through two halves, so many times; a round of a portion begins when its last is over. `late`:
    the first half is, and the second has all portions to do from then on."""
    once = critical + (portions - 1) * slower
    if late is not None:
        once = np.where(np.greater(portions, 1), np.maximum(once, late[0] + portions * late[1]), once)
    return once + (rounds - 1) * np.maximum(critical, portions * slower) if rounds > 1 else once


def _falls(values: Floats) -> npt.NDArray[np.bool_]:
    return np.concatenate(([values[0] < math.inf], values[1:] < values[:-1]))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
