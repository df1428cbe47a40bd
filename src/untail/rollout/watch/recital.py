"""Section 4, recital: the last 256 tokens all have p > 0.99, and no answer marker was written yet.

The marker is given as token ids: mechanisms see no text. Without one, an answer is never taken to have begun.
"""

import math
from typing import Annotated

from pydantic import Field

from untail.config import PositiveInt
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Watcher


@MECHANISMS.register("recital")
class Recital(Watcher):
    reason = "recital"

    class Config(Watcher.Config):
        window: PositiveInt = 256
        p: Annotated[float, Field(gt=0, lt=1)] = 0.99
        marker_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()  # what an answer begins with

    config: Config

    def fires(self, member: Member, view: View) -> bool:
        trajectory, marker = member.trajectory, self.config.marker_ids
        window = self.window(view)
        logprobs = trajectory.of_model("policy_logprob", window)
        if len(logprobs) < window or min(logprobs) <= math.log(self.config.p):
            return False
        return not (marker and _contains(trajectory.of_model("tokens"), list(marker)))


def _contains(tokens: list[int], marker: list[int]) -> bool:
    starts = (at for at, token in enumerate(tokens) if token == marker[0])
    return any(tokens[at : at + len(marker)] == marker for at in starts)
