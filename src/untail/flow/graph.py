"""A flow graph: the roles of a step, and what each hands on to the next.

Invariant: an edge names nodes that exist. Edges that close something say what: `rounds`, a loop that a batch goes
through so many times (an environment and its policy), or `next_step`, what the next step begins with (new weights). All
others make no cycle, and with every loop taken for one node they still make none: `stages` are in an order in which
they can run.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from untail.errors import UserError, nearest

T = TypeVar("T", bound=Hashable)


class FlowError(UserError):
    """A flow graph that cannot be run or planned."""


@dataclass(frozen=True)
class Node:
    """A role: rollout, reward, reference, log-probs, update, environment, policy."""

    name: str
    on_host: bool = False  # it takes no device, and runs beside whatever has them
    borrows: bool = False  # it runs on devices that others let wait, too; its cost is a Borrower's


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    data: str = ""  # what goes along it
    apart_s: float = 0.0  # what that takes, a whole batch of it, if its ends have devices of their own
    rounds: int | None = None  # it closes a loop that a batch goes through so many times
    next_step: bool = False  # what goes along it is for the next step

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Stage:
    """A node, or the nodes of a loop, in an order in which one round can run."""

    members: tuple[str, ...]
    rounds: int | None = None  # of a loop

    @property
    def name(self) -> str:
        return "+".join(self.members)


class Graph:
    def __init__(self, nodes: Sequence[Node], edges: Sequence[Edge]):
        self.nodes = {node.name: node for node in nodes}
        self.edges = tuple(edges)
        _check(nodes, self.nodes, self.edges)
        self._forward = [edge for edge in self.edges if edge.rounds is None and not edge.next_step]
        self._order = self._sorted()
        self.stages = self._collapse()

    def follows(self, first: str, second: str) -> bool:
        """An edge of this step leads from one to the other."""
        return any(edge.source == first and edge.target == second for edge in self._forward)

    def _sorted(self) -> list[str]:
        before: dict[str, list[str]] = {name: [] for name in self.nodes}
        for edge in self._forward:
            before[edge.target].append(edge.source)
        return _in_order(before)

    def _collapse(self) -> list[Stage]:
        loops: dict[frozenset[str], int] = {}
        for edge in self.edges:
            if edge.rounds is not None:
                reached = self._reach(edge.target, back=False)
                members = frozenset(reached & self._reach(edge.source, back=True))
                if not members:
                    raise FlowError(
                        f"the edge {edge} has rounds = {edge.rounds}, but nothing leads from {edge.target} to "
                        f"{edge.source}, so that it closes no loop; leave rounds out, or add the way there"
                    )
                _add_loop(loops, members, edge)
        stage_of = {name: members for members in loops for name in members}
        stage_of |= {name: frozenset([name]) for name in self.nodes if name not in stage_of}
        before: dict[frozenset[str], list[frozenset[str]]] = {members: [] for members in stage_of.values()}
        for edge in self._forward:
            if stage_of[edge.source] != stage_of[edge.target]:
                before[stage_of[edge.target]].append(stage_of[edge.source])
        places = {name: place for place, name in enumerate(self._order)}
        ordered = _in_order(before)
        return [Stage(tuple(sorted(members, key=places.__getitem__)), loops.get(members)) for members in ordered]

    def _reach(self, start: str, back: bool) -> set[str]:
        """What it leads to, or else what leads to it; itself included."""
        steps = [(edge.target, edge.source) if back else (edge.source, edge.target) for edge in self._forward]
        found, left = {start}, [start]
        while left:
            here = left.pop()
            new = {there for begin, there in steps if begin == here} - found
            found |= new
            left += new
        return found


def _check(nodes: Sequence[Node], known: dict[str, Node], edges: Sequence[Edge]) -> None:
    if not nodes:
        raise FlowError("the flow graph has no nodes; give at least one")
    if len(known) < len(nodes):
        twice = next(node.name for place, node in enumerate(nodes) if node in nodes[:place] or node != known[node.name])
        raise FlowError(f"the flow graph has two nodes named {twice!r}; give each a name of its own")
    for edge in edges:
        for name in (edge.source, edge.target):
            if name not in known:
                raise FlowError(f"the edge {edge} names the node {name!r}, which is unknown; {nearest(name, [*known])}")
        if edge.rounds is not None and edge.next_step:
            raise FlowError(f"the edge {edge} has rounds and next_step; it closes either a loop or a step")
        if edge.rounds is not None and edge.rounds < 1:
            raise FlowError(f"the edge {edge} has rounds = {edge.rounds}; a batch goes through a loop at least once")
        if not 0 <= edge.apart_s < math.inf:
            raise FlowError(f"the edge {edge} has apart_s = {edge.apart_s}; give seconds, 0 or more")


def _add_loop(loops: dict[frozenset[str], int], members: frozenset[str], edge: Edge) -> None:
    assert edge.rounds is not None
    for other, rounds in loops.items():
        if other & members and (other != members or rounds != edge.rounds):
            raise FlowError(
                f"the loop that {edge} closes shares {', '.join(sorted(other & members))} with another of {rounds} "
                "rounds; loops may not overlap: give them the same nodes and rounds, or take them apart"
            )
    loops[members] = edge.rounds


def _in_order(before: dict[T, list[T]]) -> list[T]:
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        names = [name if isinstance(name, str) else "+".join(sorted(name)) for name in error.args[1]]
        raise FlowError(
            f"the flow graph has a cycle: {' -> '.join(reversed(names))}; say on the edge that closes it how many "
            "rounds a batch goes through it (rounds), or that it is for the next step (next_step)"
        ) from None
