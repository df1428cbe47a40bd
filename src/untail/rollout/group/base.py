"""What all that prune share: a floor under the group, a draw where pruning is random, and what the pruned get.

Invariant: at least max(2, floor x group size) members of a group are never pruned, the finished ones included. Who goes
beyond that is told worst first, and the floor spares the last of them. Whoever a draw lets live is told with its
chance, given how the draws before it went: what a learner needs to weigh the survivors without bias. With a chance of
at most 0.9 nobody survives with less than 0.1 over all draws: who is that close is drawn no more.
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
LEAST_SURVIVAL = 0.1  # nobody is drawn against worse odds: its weight would drown the others'


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
        verdicts: dict[str, Verdict] = {}
        for member in self.worst(group, view):
            if room == 0:
                break
            if self.chance <= 1 - LEAST_SURVIVAL and member.trajectory.survival * (1 - self.chance) < LEAST_SURVIVAL:
                continue
            verdicts[member.id] = self._verdict(member, view)
            room -= verdicts[member.id].act == "stop"
        return verdicts

    @property
    def chance(self) -> float:
        """With which the worst are pruned."""
        return 1.0

    @property
    def prunes_surely(self) -> bool:
        return self.chance > 1 - LEAST_SURVIVAL

    def _verdict(self, member: Member, view: View) -> Verdict:
        draws = view.rng(self.reason, member.id, len(member.trajectory.segments))
        act: Literal["stop", "spare"] = "stop" if draws.random() < self.chance else "spare"
        return Verdict(act, self.reason, self.config.stopped, self.chance)

    @abstractmethod
    def worst(self, group: LiveGroup, view: View) -> list[Member]:
        """Open members to prune, the worst first. Pre: as for `decide`."""

    def _floor(self, size: int) -> int:
        return max(FEWEST, math.ceil(self.config.floor * size))
