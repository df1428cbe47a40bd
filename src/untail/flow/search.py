"""The search behind the planner: of all ways to run a flow graph on N devices, the fastest.

A part of the graph is cut in two, of which nothing leads from the second to the first, in every way there is. The two
run, and each of them again in the same ways,

  in turn        on the same devices: T_s + T_t; where they do not fit there together, each role is loaded for its turn
                 and taken off after it;
  side by side   on N_s + N_t = N, in portions of m of the M items: T_critical + (M / m - 1) T_bottleneck of a portion.

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

from untail.flow.plan import Kind, Step
from untail.flow.work import Work

State = Literal["resident", "swapped", "steady"]
"""A part has its devices for itself; it is loaded for its turn; it has them, and batches overlap."""
Floats = npt.NDArray[np.float64]
BOTH: frozenset[Kind] = frozenset({"in turn", "side by side"})


class Option(NamedTuple):
    """One way to run a part: the fastest of its kind for one cut."""

    seconds: float
    kind: Kind
    halves: tuple[int, int]
    devices: tuple[int, int]
    row: int  # of the size of a portion
    state: State  # of the halves


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
        self._rounds = {mask: rounds for mask, rounds in stages.items() if rounds is not None}
        follows = work.graph.follows
        self._after = {bit[a]: sum(bit[b] for b in self.names if follows(a, b)) for a in self.names}
        self._edges = [(bit[edge.source], bit[edge.target], edge.apart_s) for edge in work.graph.edges]
        self._seconds: dict[int, Floats] = {}
        self._memory: dict[int, Floats] = {}
        self._loads: dict[int, Floats] = {}
        for name in self.names:
            self._measure(bit[name], name)
        self._values: dict[tuple[int, State], Floats] = {}
        self._cuts: dict[int, list[tuple[int, int]]] = {}

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
        self._seconds[node], self._memory[node], self._loads[node] = seconds, memory, load

    # ---- parts ------------------------------------------------------------------------------------------------

    def cuts(self, part: int) -> list[tuple[int, int]]:
        if part not in self._cuts:
            units = [stage for stage in self._stages if stage & part == stage and part not in self._rounds]
            if sum(units) != part:  # a loop, or what is within one
                units = list(_bits(part))
            found = [0]
            for unit in units:  # in an order in which they can run
                found += [half | unit for half in found if not self.leads(part & ~half & ~unit, unit)]
            self._cuts[part] = [(half, part & ~half) for half in found if half not in (0, part)]
        return self._cuts[part]

    def leads(self, first: int, second: int) -> bool:
        return any(self._after[bit] & second for bit in _bits(first))

    def is_node(self, part: int) -> bool:
        return part in self._seconds

    def _apart_s(self, halves: tuple[int, int], size: int) -> float:
        first, second = halves
        crossing = [s for a, b, s in self._edges if (a & first and b & second) or (a & second and b & first)]
        return math.fsum(crossing) * size / self.work.batch

    def _load(self, part: int) -> Floats:
        return np.sum([self._loads[bit] for bit in _bits(part)], axis=0)

    def _fits(self, part: int) -> npt.NDArray[np.bool_]:
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
        seconds = self._seconds[node] * self._rounds.get(node, 1)
        return seconds + self._loads[node] if state == "swapped" else seconds

    def _of_parts(self, part: int, state: State) -> Floats:
        if state == "swapped" and part in self._rounds:  # loaded for all rounds
            return self.values(part, "resident") + self._load(part)
        if state == "steady":
            best = self.values(part, "resident").copy()
            if "side by side" in self.kinds and part not in self._rounds:
                for halves in self.cuts(part):
                    np.minimum(best[-1], self._overlapped(halves), out=best[-1])
            return best
        best = np.full((len(self.sizes), self.work.devices + 1), math.inf)
        for halves in self.cuts(part):
            if "in turn" in self.kinds:
                np.minimum(best, self._in_turn(part, halves, state), out=best)
            if "side by side" in self.kinds:
                for row in range(len(self.sizes)):
                    self._split(part, halves, state, row, best)
        return best

    def _in_turn(self, part: int, halves: tuple[int, int], state: State) -> Floats:
        rounds, fits = self._rounds.get(part, 1), self._fits(part)
        if state == "swapped" or not fits.any():
            return rounds * (self.values(halves[0], "swapped") + self.values(halves[1], "swapped"))
        resident = rounds * (self.values(halves[0], "resident") + self.values(halves[1], "resident"))
        if fits[:, 1:].all():
            return resident
        swapped = rounds * (self.values(halves[0], "swapped") + self.values(halves[1], "swapped"))
        return np.where(fits, resident, swapped)

    def _split(self, part: int, halves: tuple[int, int], state: State, row: int, best: Floats) -> None:
        """Side by side in portions of one size, for every batch that it divides."""
        both = [self.values(half, "resident")[row] for half in halves]
        loads = [self._load(half) for half in halves] if state == "swapped" else []
        points = [_improvements(*curves) for curves in zip(both, *([loads] if loads else []), strict=True)]
        few = 0 if len(points[0]) <= len(points[1]) else 1
        own, rest = both[few][points[few]][:, None], _shifted(both[1 - few], points[few])
        slower = np.maximum(own, rest)
        critical = own + rest if self.leads(*halves) else slower
        if loads:
            extra = np.maximum(loads[few][points[few]][:, None], _shifted(loads[1 - few], points[few]))
        for whole, size in enumerate(self.sizes):
            if size % self.sizes[row] == 0:
                total = _pipelined(critical, slower, size // self.sizes[row], self._rounds.get(part, 1))
                fastest = (total + extra if loads else total).min(axis=0, initial=math.inf)
                np.minimum(best[whole], fastest + self._apart_s(halves, size), out=best[whole])

    def _overlapped(self, halves: tuple[int, int]) -> Floats:
        first, second = (self.values(half, "steady")[-1] for half in halves)
        points = _improvements(first)
        slower = np.maximum(first[points][:, None], _shifted(second, points))
        return np.asarray(slower.min(axis=0, initial=math.inf) + self._apart_s(halves, self.work.batch))

    # ---- how: the fastest way of each kind for each cut --------------------------------------------------------

    def options(self, part: int, devices: int, row: int, state: State) -> list[Option]:
        """The fastest first; of equals, in turn before side by side, and large portions before small ones."""
        found = []
        for halves in self.cuts(part):
            if "in turn" in self.kinds:
                found.append(self._turn_option(part, halves, devices, row, state))
            if "side by side" in self.kinds:
                if state == "steady" and part not in self._rounds:
                    found.append(self._overlap_option(halves, devices, row))
                found.append(self._split_option(part, halves, devices, row, state))
        return sorted(found, key=lambda option: option.seconds)

    def _turn_option(self, part: int, halves: tuple[int, int], devices: int, row: int, state: State) -> Option:
        once = part in self._rounds and state == "swapped"
        inside: State = "swapped" if state == "swapped" and not once else "resident"
        seconds = self._in_turn(part, halves, inside)[row] + (self._load(part) if once else 0.0)
        count = int(np.argmin(seconds[: devices + 1]))
        fits = inside == "resident" and bool(self._fits(part)[row][count])
        return Option(float(seconds[count]), "in turn", halves, (count, count), row, "resident" if fits else "swapped")

    def _split_option(self, part: int, halves: tuple[int, int], devices: int, row: int, state: State) -> Option:
        best = Option(math.inf, "side by side", halves, (0, devices), row, "resident")
        counts, rounds = np.arange(devices + 1), self._rounds.get(part, 1)
        first, second = (self._load(half) for half in halves)
        loads = np.maximum(first[counts], second[devices - counts]) if state == "swapped" else 0.0
        for small in range(row, -1, -1):
            if self.sizes[row] % self.sizes[small] == 0:
                one, other = (self.values(half, "resident")[small] for half in halves)
                own, rest = one[counts], other[devices - counts]
                slower = np.maximum(own, rest)
                critical = own + rest if self.leads(*halves) else slower
                total = _pipelined(critical, slower, self.sizes[row] // self.sizes[small], rounds) + loads
                count = int(np.argmin(total))
                seconds = float(total[count]) + self._apart_s(halves, self.sizes[row])
                if seconds < best.seconds * (1 - 1e-12):
                    best = best._replace(seconds=seconds, devices=(count, devices - count), row=small)
        return best

    def _overlap_option(self, halves: tuple[int, int], devices: int, row: int) -> Option:
        first, second = (self.values(half, "steady")[row] for half in halves)
        slower = np.maximum(first[: devices + 1], second[devices::-1])
        count = int(np.argmin(slower))
        seconds = float(slower[count]) + self._apart_s(halves, self.work.batch)
        return Option(seconds, "side by side", halves, (count, devices - count), row, "steady")

    def build(self, part: int, devices: int, row: int, state: State) -> Step:
        if not self.is_node(part):
            return self.step(part, self.options(part, devices, row, state)[0], self.sizes[row])
        seconds = self.values(part, state)[row]
        count = int(np.argmax(seconds[: devices + 1] == seconds[devices]))  # the fewest that are as fast
        name, rounds = self.names[part.bit_length() - 1], self._rounds.get(part, 1)
        return Step(count, self.sizes[row], float(seconds[devices]), name, swapped=state == "swapped", rounds=rounds)

    def step(self, part: int, option: Option, items: int) -> Step:
        first, second = (
            self.build(half, count, option.row, option.state)
            for half, count in zip(option.halves, option.devices, strict=True)
        )
        used = (first.devices, second.devices)
        devices = sum(used) if option.kind == "side by side" else max(used)
        rounds = self._rounds.get(part, 1)
        return Step(devices, items, option.seconds, kind=option.kind, parts=(first, second), rounds=rounds)


def _pipelined(critical: Floats, slower: Floats, portions: int, rounds: int) -> Floats:
    """So many portions through two halves, so many times; a round of a portion begins when its last is over."""
    once = critical + (portions - 1) * slower if portions > 1 else critical
    return once + (rounds - 1) * np.maximum(critical, portions * slower) if rounds > 1 else once


def _improvements(*curves: Floats) -> npt.NDArray[np.int_]:
    """The device counts at which something gets faster. Pre: curves never rise."""
    found = np.zeros(len(curves[0]), dtype=bool)
    for curve in curves:
        found |= curve < np.concatenate(([math.inf], curve[:-1]))
    return np.flatnonzero(found)


def _shifted(curve: Floats, counts: npt.NDArray[np.int_]) -> Floats:
    """[count, n]: the curve at n - count, where there is such a number of devices."""
    padded = np.concatenate((np.full(len(curve) - 1, math.inf), curve))
    return np.lib.stride_tricks.sliding_window_view(padded, len(curve))[len(curve) - 1 - counts]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
