"""5.5, mode collapse: all unfinished siblings are pairwise > 95 % alike in their last segment. One is kept, the first
that was admitted, and goes on; the others are stopped with the penalty.

The floor of the other rules does not hold here: a group that has collapsed has nothing to lose.
"""

from itertools import combinations
from typing import Literal

from untail.config import Strict
from untail.rollout.group.base import Share
from untail.rollout.group.features import agreement
from untail.rollout.live import LiveGroup
from untail.rollout.points import MECHANISMS, GroupPoint, Mechanism, Verdict, View


@MECHANISMS.register("mode_collapse")
class ModeCollapse(Mechanism, GroupPoint):
    sections = "5.5"

    class Config(Strict):
        stopped: Literal["penalty", "group_min", "zero", "mask"] = "penalty"
        share: Share = 0.95

    config: Config

    @property
    def prunes_surely(self) -> bool:
        return True

    def decide(self, group: LiveGroup, view: View) -> dict[str, Verdict]:
        _, *others = members = sorted(group.open, key=lambda m: m.serial)
        if not all(agreement(*pair) > self.config.share for pair in combinations(members, 2)):
            return {}
        return {member.id: Verdict("stop", "mode_collapse", self.config.stopped) for member in others}
