"""The planner: the fastest plan for a flow graph, and what speaks against the others.

Invariant: the chosen plan is the fastest that there is by the costs given (see search.py). Each alternative is the
fastest of its kind for one cut of the whole graph, or of a mode that none of them has; the fastest comes first.
"""

import math
import time

from untail.flow.graph import FlowError
from untail.flow.plan import Alternative, Kind, Mode, Plan, Step
from untail.flow.search import Search, State
from untail.flow.ways import Option, Ways
from untail.flow.work import Work

ONLY: dict[Mode, Kind] = {"collocated": "in turn", "disaggregated": "side by side"}
MOST = 8  # ways that are told of
WORDS: dict[Kind, str] = {
    "in turn": "in turn before",
    "side by side": "side by side with",
    "lent": "also on the waiting devices of",
}


def make_plan(work: Work) -> Plan:
    began = time.perf_counter()
    ways = Ways(Search(work))
    options = _options(ways)
    root = _step(ways, options[0]) if options else ways.build(ways.search.whole, work.devices, len(work.sizes) - 1)
    if math.isinf(root.seconds):
        raise FlowError(_what_never_fits(work))
    alternatives = _distinct(root, [_alternative(work, _step(ways, o), root, o) for o in options[1:MOST]])
    for mode in ONLY:
        if options and mode not in {root.mode, *(other.mode for other in alternatives)}:
            alternatives.append(_only(ways, mode, root))
    alternatives.sort(key=lambda other: math.inf if other.seconds is None else other.seconds)
    return Plan(root, work.devices, tuple(alternatives), (time.perf_counter() - began) * 1000)


def _distinct(root: Step, alternatives: list[Alternative]) -> list[Alternative]:
    """Cuts in another order that come to the same are not told of twice."""
    told: set[tuple[Mode, str | None]] = {(root.mode, _rounded(root.seconds))}
    found = []
    for other in alternatives:
        key = (other.mode, None if other.seconds is None else _rounded(other.seconds))
        if key not in told:
            told.add(key)
            found.append(other)
    return found


def _rounded(seconds: float) -> str:
    return f"{seconds:.9g}"


def _options(ways: Ways) -> list[Option]:
    """Of the whole graph; of a single node there are none."""
    work, whole = ways.search.work, ways.search.whole
    state: State = "steady" if work.steady else "resident"
    return [] if ways.search.is_node(whole) else ways.options(whole, work.devices, len(work.sizes) - 1, state)


def _step(ways: Ways, option: Option) -> Step:
    return ways.step(ways.search.whole, option, ways.search.work.batch)


def _only(all_ways: Ways, mode: Mode, best: Step) -> Alternative:
    """The fastest of a mode: only in turn, or only side by side."""
    ways = Ways(all_ways.search.only(ONLY[mode]))
    option = _options(ways)[0]
    return _alternative(ways.search.work, _step(ways, option), best, option, mode)


def _alternative(work: Work, step: Step, best: Step, option: Option, mode: Mode | None = None) -> Alternative:
    first, second = step.parts
    what = f"{first.name} {WORDS[option.kind]} {second.name}"
    if math.isinf(step.seconds):
        mode = mode or ("disaggregated" if option.kind == "side by side" else step.mode)
        return Alternative(mode, what, None, _what_does_not_fit(work, step))
    slower = f"{step.seconds / best.seconds - 1:.1%} slower" if step.seconds > best.seconds else "no faster"
    return Alternative(mode or step.mode, what, step.seconds, f"{slower}: {_where_time_goes(step)}")


def _where_time_goes(step: Step) -> str:
    first, second = step.parts
    if step.kind == "in turn":
        loaded = [leaf.node for leaf in step.leaves if leaf.swapped and leaf.node]
        swaps = f", with {' and '.join(loaded)} loaded for each turn, as not all fit at once" if loaded else ""
        return f"{first.name} takes {first.seconds:.3g} s, then {second.name} {second.seconds:.3g} s{swaps}"
    fast, slow = sorted(step.parts, key=lambda part: part.seconds)
    where = f"on {slow.devices} device{'s' if slow.devices != 1 else ''}" if slow.devices else "on the host"
    portions = f" a portion of {step.portion}" if step.portion < step.items else ""
    return f"{slow.name} {where} takes {slow.seconds:.3g} s{portions}, {fast.name} {fast.seconds:.3g} s"


def _what_does_not_fit(work: Work, step: Step) -> str:
    for leaf in step.leaves:
        if math.isinf(leaf.seconds) and leaf.node is not None:
            given = max(1, leaf.devices)
            held = work.costs[leaf.node].memory_gib(given, leaf.items)
            if held > work.memory_gib:
                return (
                    f"does not fit: {leaf.node} needs {held:.3g} GiB a device, of which each has {work.memory_gib:.3g}"
                )
    return f"{work.devices} device{'s are' if work.devices > 1 else ' is'} not enough for both"


def _what_never_fits(work: Work) -> str:
    for name, node in work.graph.nodes.items():
        held = min(work.costs[name].memory_gib(n, work.sizes[0]) for n in range(1, work.devices + 1))
        if held > work.memory_gib and not node.on_host:
            return (
                f"the node {name!r} needs {held:.3g} GiB a device even on all {work.devices}, and a device has "
                f"{work.memory_gib:.3g}; give more devices, or shard it further"
            )
    return f"no plan fits {work.devices} devices of {work.memory_gib:.3g} GiB; give more devices"
