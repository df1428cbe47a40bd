"""How the fastest seconds of a part come about: the search's figures, read back into a plan.

Invariant: what is built takes the seconds that the search found. Of equals, in turn goes before side by side, a large
portion before a small one, and few devices before many.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from untail.flow.lending import TOLL
from untail.flow.plan import Kind, Step
from untail.flow.search import Cut, Search, Staircase, State, beside, pipelined


class Option(NamedTuple):
    """One way to run a part: the fastest of its kind for one cut."""

    seconds: float
    kind: Kind
    halves: tuple[int, int]
    devices: tuple[int, int]
    row: int  # of the size of a portion
    state: State  # of the halves
    loaded: bool = False  # all of it, for its turn


class Ways:
    def __init__(self, search: Search):
        self.search = search

    def options(self, part: int, devices: int, row: int, state: State) -> list[Option]:
        """The fastest first; of equals, in turn before side by side, and large portions before small ones."""
        if state == "swapped" and part in self.search.rounds:  # loaded for all rounds
            load_s = float(self.search.load(part).values[devices])
            inside = self.options(part, devices, row, "resident")
            return [option._replace(seconds=option.seconds + load_s, loaded=True) for option in inside]
        found = []
        for cut in self.search.cuts(part):
            if "in turn" in self.search.kinds:
                found.append(self._turn_option(part, cut, devices, row, state))
            if "side by side" in self.search.kinds:
                if state == "steady" and part not in self.search.rounds:
                    found.append(self._overlap_option(cut, devices, row))
                found.append(self._split_option(part, cut, devices, row, state))
            if "lent" in self.search.kinds and state == "steady" and part == self.search.whole:
                found += self._lent_options(part, cut, devices, row)
        return sorted(found, key=lambda option: option.seconds)

    def _turn_option(self, part: int, cut: Cut, devices: int, row: int, state: State) -> Option:
        inside: State = "swapped" if state == "swapped" else "resident"
        seconds = self.search.in_turn(part, cut, inside)[row]
        count = int(np.argmin(seconds[: devices + 1]))
        fits = inside == "resident" and bool(self.search.fits(part)[row][count])
        return Option(
            float(seconds[count]), "in turn", cut.halves, (count, count), row, "resident" if fits else "swapped"
        )

    def _split_option(self, part: int, cut: Cut, devices: int, row: int, state: State) -> Option:
        best = Option(math.inf, "side by side", cut.halves, (0, devices), row, "resident", state == "swapped")
        counts, rounds = np.arange(devices + 1), self.search.rounds.get(part, 1)
        first, second = (self.search.load(half).values for half in cut.halves)
        loads = np.maximum(first[counts], second[devices - counts]) if state == "swapped" else 0.0
        for small in range(row, -1, -1):
            if self.search.sizes[row] % self.search.sizes[small] == 0:
                one, other = (self.search.values(half, "resident")[small] for half in cut.halves)
                own, rest = one[counts], other[devices - counts]
                critical, slower = beside(own, rest, cut.leads)
                portions = self.search.sizes[row] // self.search.sizes[small]
                late = (self.search.late(cut.halves[0], small).values[counts] + own, rest) if cut.leads else None
                total = pipelined(critical, slower, portions, rounds, late) + loads
                count = int(np.argmin(total))
                seconds = float(total[count]) + cut.apart_s * self.search.sizes[row]
                if seconds < best.seconds * (1 - 1e-12):
                    best = best._replace(seconds=seconds, devices=(count, devices - count), row=small)
        return best

    def _overlap_option(self, cut: Cut, devices: int, row: int) -> Option:
        first, second = (self.search.values(half, "steady")[row] for half in cut.halves)
        slower = np.maximum(first[: devices + 1], second[devices::-1])
        count = int(np.argmin(slower))
        seconds = float(slower[count]) + cut.apart_s * self.search.work.batch
        return Option(seconds, "side by side", cut.halves, (count, devices - count), row, "steady")

    def _lent_options(self, part: int, cut: Cut, devices: int, row: int) -> list[Option]:
        """One, if there is any: with the fastest of the numbers of devices that make the second half faster."""
        borrower = self.search.borrower(cut)
        if borrower is None:
            return []
        first, second = (Staircase(self.search.values(half, "steady")[row]) for half in cut.halves)
        best = Option(math.inf, "lent", cut.halves, (devices, 0), row, "steady")
        for lent in second.steps[(second.steps > 0) & (second.steps < devices)]:
            loads = [float(self.search.load(half).values[lent]) for half in cut.halves]
            more = loads[0] if self.search.fits(part)[row][lent] else sum(loads)
            more += cut.apart_s * self.search.work.batch
            busy = float(second.values[lent])
            if max(busy, first.values[devices]) + more < best.seconds:  # with all devices it takes no longer
                seconds = max(busy, (1 + TOLL) * borrower.lent_seconds(devices, int(lent), busy)) + more
                best = min(best, best._replace(seconds=seconds, devices=(devices, int(lent))))
        return [best] if best.seconds < math.inf else []

    def build(self, part: int, devices: int, row: int, state: State = "resident") -> Step:
        if not self.search.is_node(part):
            return self.step(part, self.options(part, devices, row, state)[0], self.search.sizes[row])
        seconds = self.search.values(part, state)[row]
        count = int(np.argmax(seconds[: devices + 1] == seconds[devices]))  # the fewest that are as fast
        name, rounds = self.search.names[part.bit_length() - 1], self.search.rounds.get(part, 1)
        items, swapped = self.search.sizes[row], state == "swapped" and count > 0
        return Step(count, items, float(seconds[devices]), name, swapped=swapped, rounds=rounds)

    def step(self, part: int, option: Option, items: int) -> Step:
        first, second = (
            self.build(half, count, option.row, option.state)
            for half, count in zip(option.halves, option.devices, strict=True)
        )
        if option.loaded:
            first, second = _loaded(first), _loaded(second)
        used = (first.devices, second.devices)
        devices = sum(used) if option.kind == "side by side" else max(used)
        rounds = self.search.rounds.get(part, 1)
        return Step(devices, items, option.seconds, kind=option.kind, parts=(first, second), rounds=rounds)


def _loaded(step: Step) -> Step:
    return replace(step, swapped=step.node is not None and step.devices > 0, parts=tuple(map(_loaded, step.parts)))
