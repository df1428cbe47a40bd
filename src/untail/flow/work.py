"""What the planner is asked: a flow graph, what its roles cost, and what there is to run it on.

Invariant: every node has a cost, and every portion divides the batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from untail.flow.cost import Cost
from untail.flow.graph import FlowError, Graph


@dataclass(frozen=True)
class Work:
    """What is to be planned."""

    graph: Graph
    costs: Mapping[str, Cost]
    devices: int
    batch: int  # items of a step
    memory_gib: float = math.inf  # of a device
    portions: Sequence[int] = ()  # items that may be handed on at a time; unset: every divisor of the batch
    steady: bool = False  # a step may learn from what an earlier version of the weights has made

    def __post_init__(self) -> None:
        for name, value in (("devices", self.devices), ("batch", self.batch)):
            if value < 1:
                raise FlowError(f"{name} = {value} must be at least 1")
        for missing in sorted(self.graph.nodes.keys() - self.costs.keys()):
            raise FlowError(f"the cost of the node {missing!r} is missing; measure it, or give a profile that has it")
        for portion in self.portions:
            if portion < 1 or self.batch % portion:
                raise FlowError(f"granularity {portion} does not divide the batch of {self.batch} items")

    @cached_property
    def sizes(self) -> list[int]:
        """Items of a call, from the smallest to the batch."""
        chosen = self.portions or [m for m in range(1, self.batch + 1) if self.batch % m == 0]
        return sorted({*chosen, self.batch})
