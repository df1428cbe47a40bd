"""5.1, duplicates: of two unfinished siblings whose last segment agrees in >= 99 % of its tokens, one is dropped: the
one that was admitted later.

It wrote what its twin wrote, so by default it is masked: a penalty would teach against both.
"""

from typing import Literal

from untail.rollout.group.base import Pruner, Share
from untail.rollout.group.features import agreement
from untail.rollout.live import LiveGroup, Member
from untail.rollout.points import MECHANISMS, View


@MECHANISMS.register("duplicates")
class Duplicates(Pruner):
    sections = "5.1"
    reason = "duplicate"

    class Config(Pruner.Config):
        stopped: Literal["penalty", "group_min", "zero", "mask"] = "mask"
        share: Share = 0.99

    config: Config

    def worst(self, group: LiveGroup, view: View) -> list[Member]:
        kept: list[Member] = []
        dropped: list[Member] = []
        for member in sorted(group.open, key=lambda m: m.serial):
            is_like_another = any(agreement(member, other) >= self.config.share for other in kept)
            (dropped if is_like_another else kept).append(member)
        return dropped
