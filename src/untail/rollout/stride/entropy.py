"""3.3d, elastic segments at entropy events: within [min, max] stride, cut where the 32-token mean entropy leaves its
EMA by more than 2 std.

The windows lie side by side, counted from the response's first token. Their EMA has weight 0.1 and is a plain mean for
the first ten (weight 1/n); its std is that of the windows under the same weights. Nothing is cut at the first four. An
event is noticed at the next look and the cut comes there. Strides scale with the budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from untail.config import PositiveFloat, PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Mechanism, Stride, Strider, Verdict, View, Watch
from untail.rollout.stride.scale import refuse_over_budget, scaled
from untail.types import Group


@dataclass(slots=True)
class Level:
    """The mean entropy of a member's windows so far, and their variance."""

    windows: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def take(self, entropy: float, ema: float) -> None:
        self.windows += 1
        weight = max(ema, 1 / self.windows)
        off = entropy - self.mean
        self.mean += weight * off
        self.variance = (1 - weight) * (self.variance + weight * off * off)


@MECHANISMS.register("entropy")
class Entropy(Mechanism, Strider, Watch):
    sections = "3.3d"
    needs_entropy = True

    class Config(Strict):
        min_stride: PositiveInt = 512
        max_stride: PositiveInt = 4096
        window: PositiveInt = 32
        stds: PositiveFloat = 2.0
        ema: Annotated[float, Field(gt=0, le=1)] = 0.1  # weight of the newest window
        settle: PositiveInt = 4  # windows until the EMA is trusted

    config: Config

    def __init__(self, config: Config):
        super().__init__(config)
        # By member id. Not in `state`: it follows from a member's tokens, and is made from them again after a resume.
        self._levels: dict[str, Level] = {}

    def check(self, group: int, budget: int) -> None:
        if self.config.min_stride > self.config.max_stride:
            raise ConfigError(
                f"mechanisms.entropy.min_stride = {self.config.min_stride} must not exceed "
                f"mechanisms.entropy.max_stride = {self.config.max_stride}; lower it"
            )
        refuse_over_budget("mechanisms.entropy.max_stride", self.config.max_stride, budget)

    def stride(self, member: Member, view: View) -> Stride:
        return Stride(scaled(self.config.max_stride, view.budget))

    def look(self, member: Member, view: View) -> Verdict | None:
        if member.route.stride is not None:
            return None  # its lane has set the stride
        trajectory, window = member.trajectory, self.config.window
        entropy = trajectory.of_model("entropy")
        shortest = scaled(self.config.min_stride, view.budget) * member.route.scale
        earliest = member.segment_begin - trajectory.reply_tokens + shortest
        level = self._levels.setdefault(member.id, Level())
        is_event = False
        for end in range((level.windows + 1) * window, len(entropy) + 1, window):
            mean = math.fsum(entropy[end - window : end]) / window
            is_event |= end >= earliest and self._leaves(mean, level)
            level.take(mean, self.config.ema)
        return Verdict("cut", "entropy") if is_event else None

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        under_way = {member.id for group in view.groups for member in group.members}
        self._levels = {name: level for name, level in self._levels.items() if name in under_way}

    def _leaves(self, mean: float, level: Level) -> bool:
        is_settled = level.windows >= self.config.settle
        return is_settled and abs(mean - level.mean) > self.config.stds * math.sqrt(level.variance)
