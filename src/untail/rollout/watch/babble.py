"""Section 4, babble: mean H over the last 256 tokens > 0.7 ln V.

A recipe that wants it must ask for it: high entropy is often useful exploration.
"""

import math

from untail.config import PositiveInt
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Share, Watcher


@MECHANISMS.register("babble")
class Babble(Watcher):
    reason = "babble"
    needs_entropy = True

    class Config(Watcher.Config):
        window: PositiveInt = 256
        share: Share = 0.7  # of ln V, the entropy of drawing any token alike

    config: Config

    def fires(self, member: Member, view: View) -> bool:
        config = self.config
        window = self.window(view)
        entropy = member.trajectory.of_model("entropy", window)
        limit = config.share * math.log(view.vocab)
        return len(entropy) == window and math.fsum(entropy) > limit * window
