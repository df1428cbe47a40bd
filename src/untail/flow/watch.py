"""A plan that is kept true: what the roles really take is heard after every step, and one that drifts is planned anew.

Invariant: the plan in force is the fastest for the costs as measured last. A single slow step is no drift: what counts
is the median of the last few.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from untail.errors import DataError, nearest
from untail.flow.cost import Scaled
from untail.flow.plan import Plan, Step
from untail.flow.planner import make_plan
from untail.flow.work import Work

DRIFT = 0.15  # of what was predicted, either way
STEPS = 3


class Watch:
    def __init__(self, work: Work):
        self.work = work
        self.plan = make_plan(work)
        self._ratios: dict[str, deque[float]] = {name: deque(maxlen=STEPS) for name in work.graph.nodes}

    def hear(self, seconds: Mapping[str, float]) -> Plan | None:
        """What each role took in a step, all its calls together, as far as it was measured. The new plan, if a role has
        drifted; it may be the old one with other seconds."""
        predicted = dict(self._predicted(self.plan.root))
        for name, taken in seconds.items():
            if name not in predicted:
                raise DataError(f"seconds of {name!r}, which is no role of this flow; {nearest(name, [*predicted])}")
            if predicted[name] > 0:
                self._ratios[name].append(taken / predicted[name])
        drifted = {name: median(ratios) for name, ratios in self._ratios.items() if len(ratios) == STEPS}
        drifted = {name: ratio for name, ratio in drifted.items() if abs(ratio - 1) > DRIFT}
        if not drifted:
            return None
        scaled = {name: Scaled(self.work.costs[name], ratio) for name, ratio in drifted.items()}
        self.work = replace(self.work, costs={**self.work.costs, **scaled})
        self.plan = make_plan(self.work)
        for ratios in self._ratios.values():  # they were of the old plan
            ratios.clear()
        return self.plan

    def _predicted(self, step: Step, rounds: int = 1) -> Iterator[tuple[str, float]]:
        """Seconds in a step, without what it takes to load a role."""
        rounds *= step.rounds
        if step.node is not None:
            once = self.work.costs[step.node].seconds(max(1, step.devices), step.items)
            yield step.node, once * rounds * (self.work.batch // step.items)
        for part in step.parts:
            yield from self._predicted(part, rounds)
