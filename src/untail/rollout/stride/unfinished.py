"""3.3a, elastic segments by the unfinished ratio R of the group: open members / all that are not gone.

First stride: the predicted mean of the group, at most the cap; cap / 4 where nothing is known. Then R > 0.8 gives 1024,
R < 0.2 the whole remaining budget in place (`finish`) or 512 (`small`), and between them it is linear from 1024 to 512.
Shorter as the KV load rises: above a load of 0.5 all but `finish` is multiplied by (1 - load) / 0.5, at least 0.25.
Lengths scale with the budget.
"""

from typing import Annotated, Literal

from pydantic import Field

from untail.config import PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.live import LiveGroup, Member, State
from untail.rollout.points import MECHANISMS, Mechanism, Stride, Strider, View
from untail.rollout.stride.scale import refuse_over_budget, scaled

Share = Annotated[float, Field(ge=0, le=1)]


@MECHANISMS.register("unfinished")
class Unfinished(Mechanism, Strider):
    sections = "3.3a"

    class Config(Strict):
        cap: PositiveInt = 4096
        unknown: Annotated[float, Field(gt=0, le=1)] = 0.25  # of the cap: the first stride where nothing is known
        many: Share = 0.8  # R
        few: Share = 0.2
        large: PositiveInt = 1024  # where many are unfinished
        small: PositiveInt = 512  # where few are
        last: Literal["finish", "small"] = "finish"
        free_load: Annotated[float, Field(ge=0, lt=1)] = 0.5  # the KV load up to which strides keep their length
        load_floor: Annotated[float, Field(gt=0, le=1)] = 0.25

    config: Config

    def check(self, group: int, budget: int) -> None:
        config = self.config
        if config.few >= config.many:
            raise ConfigError(
                f"mechanisms.unfinished.few = {config.few} must be below mechanisms.unfinished.many = {config.many}; "
                "lower it"
            )
        if not config.small <= config.large <= config.cap:
            raise ConfigError(
                f"mechanisms.unfinished needs small <= large <= cap, but they are {config.small}, {config.large} and "
                f"{config.cap}; lower mechanisms.unfinished.{'small' if config.small > config.large else 'large'}"
            )
        refuse_over_budget("mechanisms.unfinished.cap", config.cap, budget)

    def stride(self, member: Member, view: View) -> Stride:
        if member.is_new:
            tokens = self._first(member, view)
        else:
            ratio = unfinished_ratio(member.group)
            if ratio < self.config.few and self.config.last == "finish":
                return Stride(max(1, member.left), in_place=True)
            tokens = self._by_ratio(ratio, view.budget)
        return Stride(max(1, round(tokens * self._under_load(view.kv_used))))

    def _first(self, member: Member, view: View) -> float:
        predicted = view.predictor.predict(member.group.plan.prompt, member.group.finished_lengths)
        cap = scaled(self.config.cap, view.budget)
        return self.config.unknown * cap if predicted.source == "unknown" else min(predicted.mean, cap)

    def _by_ratio(self, ratio: float, budget: int) -> float:
        config = self.config
        small, large = scaled(config.small, budget), scaled(config.large, budget)
        part = (ratio - config.few) / (config.many - config.few)
        return small + (large - small) * min(1.0, max(0.0, part))

    def _under_load(self, load: float) -> float:
        return min(1.0, max(self.config.load_floor, (1 - load) / (1 - self.config.free_load)))


def unfinished_ratio(group: LiveGroup) -> float:
    """0 where everybody is gone: the audit runs on with one of them."""
    return len(group.open) / max(1, sum(member.state is not State.GONE for member in group.members))
