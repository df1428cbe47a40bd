"""A plan: which role runs where, in turn with another or side by side, in which portions, and what that takes.

Invariant: a plan is a tree whose leaves are the graph's nodes, each once. Its mode follows from it: collocated where
all take turns, disaggregated where none do, hybrid where some do, or where one lends its devices while it waits. Roles
on the host take nobody's devices and count for neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["in turn", "side by side", "lent"]
"""Lent: side by side, and the first runs on the devices of the second, too, while that waits."""
Mode = Literal["collocated", "disaggregated", "hybrid"]


@dataclass(frozen=True)
class Step:
    """One role, or two parts of the flow. `seconds` are of one call with `items`."""

    devices: int  # of which more than it can use stay idle
    items: int
    seconds: float
    node: str | None = None
    kind: Kind | None = None  # of two parts
    parts: tuple["Step", ...] = ()
    swapped: bool = False  # a role is loaded for its turn and taken off after it
    rounds: int = 1  # of a loop

    @property
    def portion(self) -> int:
        """Items that one part hands to the other at a time."""
        return self.parts[0].items if self.parts else self.items

    @property
    def leaves(self) -> Iterator["Step"]:
        if self.node is not None:
            yield self
        for part in self.parts:
            yield from part.leaves

    @property
    def name(self) -> str:
        return " + ".join(leaf.node or "" for leaf in self.leaves)

    @property
    def kinds(self) -> set[Kind]:
        """How parts that have devices share them."""
        found = {kind for part in self.parts for kind in part.kinds}
        if self.kind is not None and all(part.devices for part in self.parts):
            found.add(self.kind)
        return found

    @property
    def mode(self) -> Mode:
        match sorted(self.kinds):
            case ["side by side"]:
                return "disaggregated"
            case [] | ["in turn"]:
                return "collocated"
        return "hybrid"

    def placement(self, first: int = 0) -> dict[str, range]:
        """The devices of every role; of one on the host, none."""
        if self.node is not None:
            return {self.node: range(first, first + self.devices)}
        found: dict[str, range] = {}
        for part in self.parts:
            last = first + self.devices - part.devices
            found |= part.placement(last if self.kind == "lent" else first)
            first += part.devices if self.kind == "side by side" else 0
        return found

    def lines(self, indent: str = "") -> Iterator[str]:
        """For people, one line a part."""
        took = f"{self.seconds:.3g} s for {self.items} item{'s' if self.items > 1 else ''}"
        if self.node is not None:
            where = f"{self.devices} device{'s' if self.devices > 1 else ''}" if self.devices else "the host"
            swap = ", loaded for its turn" if self.swapped else ""
            yield f"{indent}{self.node} on {where}: {took}{swap}"
            return
        portions = f", {self.portion} at a time" if self.kind == "side by side" else ""
        rounds = f", {self.rounds} rounds" if self.rounds > 1 else ""
        yield f"{indent}{self.kind} on {self.devices}{portions}{rounds}: {took}"
        for part in self.parts:
            yield from part.lines(indent + "  ")


@dataclass(frozen=True)
class Alternative:
    """What was not chosen, and why not."""

    mode: Mode
    what: str
    seconds: float | None  # None: it cannot be run
    why: str


@dataclass(frozen=True)
class Plan:
    root: Step
    devices: int
    alternatives: tuple[Alternative, ...]
    search_ms: float

    @property
    def mode(self) -> Mode:
        return self.root.mode

    @property
    def predicted_step_s(self) -> float:
        return self.root.seconds

    @property
    def granularity(self) -> int:
        """Items that the first split of devices hands on at a time; without one, all."""
        splits = (
            step for step in _all(self.root) if step.kind == "side by side" and all(p.devices for p in step.parts)
        )
        return next((split.portion for split in splits), self.root.items)

    def as_json(self) -> dict[str, Any]:
        places = self.root.placement()
        return {
            "mode": self.mode,
            "placement": {node: {"first": r.start, "count": len(r)} for node, r in places.items()},
            "granularity": self.granularity,
            "predicted_step_s": self.predicted_step_s,
            "search_ms": self.search_ms,
            "alternatives": [vars(alternative) for alternative in self.alternatives],
            "tree": list(self.root.lines()),
        }


def _all(step: Step) -> Iterator[Step]:
    yield step
    for part in step.parts:
        yield from _all(part)
