"""What all that prune share: a floor under the group, and what the pruned get.

Invariant: at least max(2, floor x group size) members of a group are never pruned, the finished ones included. Who goes
beyond that is told worst first, and the floor spares the last of them.
"""

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from untail.config import Strict
from untail.errors import ConfigError
from untail.rollout.live import LiveGroup, Member
from untail.rollout.points import GroupPoint, Mechanism, Verdict, View

Share = Annotated[float, Field(ge=0, le=1)]
FEWEST = 2  # with one alone there is nothing to compare


class Pruner(Mechanism, GroupPoint):
    reason: ClassVar[str]

    class Config(Strict):
        stopped: Literal["penalty", "group_min", "zero", "mask"] = "penalty"
        floor: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of the group, at least 2: not pruned, whatever they are

    def check(self, group: int, budget: int) -> None:
        if self._floor(group) >= group:
            raise ConfigError(
                f"rollout.group = {group} is too small for mechanisms.{self.name}: it has to keep {self._floor(group)} "
                f"members (floor = {self.config.floor}, and {FEWEST} at the least); raise rollout.group, lower the "
                f"floor, or leave it out with --set mechanisms.{self.name}=false"
            )

    def decide(self, group: LiveGroup, view: View) -> dict[str, Verdict]:
        room = max(0, len(group.alive) - self._floor(group.plan.size))
        return {m.id: self.verdict for m in self.worst(group, view)[:room]}

    @property
    def verdict(self) -> Verdict:
        return Verdict("stop", self.reason, self.config.stopped)

    @abstractmethod
    def worst(self, group: LiveGroup, view: View) -> list[Member]:
        """Open members to prune, the worst first. Pre: as for `decide`."""

    def _floor(self, size: int) -> int:
        return max(FEWEST, math.ceil(self.config.floor * size))
