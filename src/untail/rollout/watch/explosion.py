"""Section 4, explosion: len > mean + 3 std of its prompt's history, and at least half of the group has finished, and
len > 2 x the mean of those.

Finished are members that ended by themselves; the group is all that are not gone. A history of fewer than two finished
lengths has no std and says nothing.
"""

from statistics import fmean
from typing import Annotated

from pydantic import Field

from untail.config import NotNegative, PositiveFloat
from untail.rollout.live import LiveGroup, Member, State
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Watcher


@MECHANISMS.register("explosion")
class Explosion(Watcher):
    reason = "explosion"

    class Config(Watcher.Config):
        stds: NotNegative = 3.0
        min_count: Annotated[int, Field(ge=2)] = 2  # finished lengths of the prompt
        finished: Annotated[float, Field(gt=0, le=1)] = 0.5  # of the group
        times: PositiveFloat = 2.0  # the mean of those that have finished

    config: Config

    def fires(self, member: Member, view: View) -> bool:
        history = view.history.stats(member.group.plan.prompt.id)
        if history is None or history.finished < self.config.min_count:
            return False
        length = member.length
        if length <= history.length_ema + self.config.stds * history.length_std:
            return False
        return self._outgrows(length, member.group)

    def _outgrows(self, length: int, group: LiveGroup) -> bool:
        finished = group.finished_lengths
        size = sum(member.state is not State.GONE for member in group.members)
        return len(finished) >= self.config.finished * size and length > self.config.times * fmean(finished)
