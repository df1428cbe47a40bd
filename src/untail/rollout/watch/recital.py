"""Section 4, recital: the last 256 tokens all have p > 0.99, no answer marker was written yet, and the partial score,
if the task has one that can tell, is low.

The marker is given as token ids: mechanisms see no text. Without one, an answer is never taken to have begun.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from untail.config import PositiveInt
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Share, Watcher


@MECHANISMS.register("recital")
class Recital(Watcher):
    reason = "recital"

    class Config(Watcher.Config):
        window: PositiveInt = 256
        p: Annotated[float, Field(gt=0, lt=1)] = 0.99
        marker_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()  # what an answer begins with
        low_partial: Share = 0.5  # below it a partial score is low

    config: Config

    @property
    def wants_partial(self) -> bool:
        return True

    def fires(self, member: Member, view: View) -> bool:
        trajectory, marker = member.trajectory, self.config.marker_ids
        window = self.window(view)
        logprobs = trajectory.of_model("policy_logprob", window)
        if len(logprobs) < window or min(logprobs) <= math.log(self.config.p):
            return False
        if marker and contains(trajectory.of_model("tokens"), marker):
            return False
        return member.partial is None or member.partial < self.config.low_partial


def contains(tokens: list[int], marker: Sequence[int]) -> bool:
    """Pre: the marker is not empty."""
    starts = (at for at, token in enumerate(tokens) if token == marker[0])
    return any(tokens[at : at + len(marker)] == list(marker) for at in starts)
