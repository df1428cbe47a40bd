"""Random small flow graphs, and the slow way to the fastest plan: every way there is, one number at a time."""

import math
import random
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from untail.flow.cost import Cost
from untail.flow.graph import Edge, Graph, Node
from untail.flow.work import Work


@dataclass
class Table(Cost):
    """Costs without any order in them: more devices may take longer, and need more memory."""

    times: dict[tuple[int, int], float]
    gib: dict[int, float]
    swaps: dict[int, float]
    late: dict[tuple[int, int], float]

    def seconds(self, devices: int, items: int) -> float:
        return self.times[devices, items]

    def memory_gib(self, devices: int, items: int) -> float:
        return self.gib[devices]

    def swap_s(self, devices: int) -> float:
        return self.swaps[devices]

    def late_s(self, devices: int, items: int) -> float:
        return self.late[devices, items]


def random_work(seed: int) -> Work:
    draws = random.Random(seed)
    count, devices, batch = draws.randint(1, 4), draws.randint(1, 5), draws.choice([1, 2, 4, 6])
    names = [f"n{place}" for place in range(count)]
    nodes = [Node(name, on_host=draws.random() < 0.2) for name in names]
    pairs = [pair for pair in combinations(names, 2) if draws.random() < 0.6]
    edges = [Edge(*pair, apart_s=draws.choice([0.0, draws.random()])) for pair in pairs]
    if pairs and draws.random() < 0.5:
        first, last = draws.choice(pairs)
        edges.append(Edge(last, first, rounds=draws.randint(1, 4)))
    edges.append(Edge(names[-1], names[0], apart_s=draws.random(), next_step=True))
    return Work(
        Graph(nodes, edges),
        {name: _table(draws, devices, batch) for name in names},
        devices,
        batch,
        memory_gib=draws.choice([math.inf, 12.0, 8.0]),
        steady=draws.random() < 0.3,
    )


def _table(draws: random.Random, devices: int, batch: int) -> Table:
    base, fixed = draws.uniform(0.5, 5.0), draws.random()
    counts, items = range(1, devices + 1), range(1, batch + 1)
    return Table(
        {(n, m): fixed + base * m / n * draws.uniform(0.6, 1.6) for n in counts for m in items},
        {n: draws.uniform(1.0, 7.0) for n in counts},
        {n: draws.random() for n in counts},
        {(n, m): draws.choice([0.0, draws.uniform(0.0, 3.0 * base)]) for n in counts for m in items},
    )


def fastest(work: Work) -> float:
    """Seconds of the fastest plan."""
    graph, sizes = work.graph, work.sizes
    loops = {frozenset(stage.members): stage.rounds for stage in graph.stages if stage.rounds is not None}

    def load(part: frozenset[str], devices: int) -> float:
        total = 0.0
        for name in part:
            if not graph.nodes[name].on_host:
                total += min((work.costs[name].swap_s(n) for n in range(1, devices + 1)), default=math.inf)
        return total

    def late(part: frozenset[str], devices: int, items: int) -> float:
        counts = range(1, max(1, devices) + 1)
        return max(min(work.costs[name].late_s(n, items) for n in counts) for name in part)

    def fits(part: frozenset[str], devices: int, items: int) -> bool:
        on_devices = [name for name in part if not graph.nodes[name].on_host]
        if not devices:
            return not on_devices
        return sum(work.costs[name].memory_gib(devices, items) for name in on_devices) <= work.memory_gib

    def halves(part: frozenset[str]) -> list[tuple[frozenset[str], frozenset[str]]]:
        found = []
        for size in range(1, len(part)):
            for first in map(frozenset, combinations(sorted(part), size)):
                second = part - first
                torn = any(loop < part and first & loop and second & loop for loop in loops)
                if not torn and not any(graph.follows(b, a) for a in first for b in second):
                    found.append((first, second))
        return found

    @cache
    def best(part: frozenset[str], devices: int, items: int, state: str) -> float:
        return min(exactly(part, n, items, state) for n in range(devices + 1))

    def exactly(part: frozenset[str], devices: int, items: int, state: str) -> float:
        rounds = loops.get(part, 1)
        if state == "swapped" and (len(part) == 1 or part in loops):
            return exactly(part, devices, items, "resident") + load(part, devices)
        if len(part) == 1:
            return rounds * alone(*part, devices, items)
        return min(
            min(turns(part, one, two, devices, items, state), beside(part, one, two, devices, items, state))
            for one, two in halves(part)
        )

    def alone(name: str, devices: int, items: int) -> float:
        if graph.nodes[name].on_host:
            return work.costs[name].seconds(1, items)
        return work.costs[name].seconds(devices, items) if fits(frozenset([name]), devices, items) else math.inf

    def turns(part, one, two, devices, items, state) -> float:
        inside = "swapped" if state == "swapped" or not fits(part, devices, items) else "resident"
        return loops.get(part, 1) * (best(one, devices, items, inside) + best(two, devices, items, inside))

    def beside(part, one, two, devices, items, state) -> float:
        crossing = [e for e in graph.edges if {e.source, e.target} & one and {e.source, e.target} & two]
        apart = sum(edge.apart_s for edge in crossing) * items / work.batch
        found, rounds = math.inf, loops.get(part, 1)
        linked = any(graph.follows(a, b) for a in one for b in two)
        for n in range(devices + 1):
            if state == "steady" and part not in loops:
                found = min(found, apart + max(best(one, n, items, state), best(two, devices - n, items, state)))
            for m in (size for size in sizes if items % size == 0):
                a, b = best(one, n, m, "resident"), best(two, devices - n, m, "resident")
                critical, slow, portions = (a + b if linked else max(a, b)), max(a, b), items // m
                once = critical + ((portions - 1) * slow if portions > 1 else 0.0)
                if linked and portions > 1:
                    once = max(once, late(one, n, m) + a + portions * b)
                again = (rounds - 1) * max(critical, portions * slow) if rounds > 1 else 0.0
                swap = max(load(one, n), load(two, devices - n)) if state == "swapped" else 0.0
                found = min(found, once + again + swap + apart)
        return found

    return best(frozenset(graph.nodes), work.devices, work.batch, "steady" if work.steady else "resident")
