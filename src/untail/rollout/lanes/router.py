"""3.1, router: the fast lane for what is surely short, segments for the rest.

Fast (one unbroken generation) iff predicted mean + 1 std < T, n >= 2 and std / mean <= 0.5; otherwise segments. In the
first 50 steps or the first epoch, whichever is shorter, everything goes in segments. A fast member that reaches 1.5 T
is demoted with its tokens and KV, and so are the longest of them, one after another, while 90 % of the KV pool is in
use. A prompt without a reward three times running gets strides of half the size. T scales with the budget.
"""

import math
from typing import Annotated

from pydantic import Field

from untail.config import NotNegative, PositiveInt, Strict
from untail.rollout.live import Member, Route, State
from untail.rollout.points import MECHANISMS, Lane, Mechanism, Verdict, View, Watch
from untail.rollout.stride.scale import refuse_over_budget, scaled

FAST, SEGMENT = "fast", "segment"


@MECHANISMS.register("router")
class Router(Mechanism, Lane, Watch):
    sections = "3.1"

    class Config(Strict):
        threshold: PositiveInt = 2048  # T
        stds: NotNegative = 1.0
        min_count: PositiveInt = 2  # lengths behind the prediction
        max_spread: NotNegative = 0.5  # std / mean
        warmup_steps: Annotated[int, Field(ge=0)] = 50
        safety: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5  # times T, and a fast member is demoted
        watermark: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the KV pool
        failing_streak: PositiveInt = 3
        failing_scale: Annotated[float, Field(gt=0, le=1)] = 0.5

    config: Config

    def check(self, group: int, budget: int) -> None:
        refuse_over_budget("mechanisms.router.threshold", self.config.threshold, budget)

    def route(self, member: Member, view: View) -> Route:
        # Whoever has tokens has been cut before: the fast lane is unbroken, and a demoted member never comes back.
        if member.is_new and not self._warms_up(view) and self._is_surely_short(member, view):
            threshold = scaled(self.config.threshold, view.budget)
            return Route(FAST, stride=round(self.config.safety * threshold))
        return Route(SEGMENT, scale=self._scale(member, view))

    def look(self, member: Member, view: View) -> Verdict | None:
        if member.route.lane != FAST or view.kv_used < self.config.watermark:
            return None
        # One that is being cut counts until it is: the next follows only if the pool is too full even then.
        fast = (
            rival
            for group in view.groups
            for rival in group.members
            if rival.state is State.RUNNING and rival.route.lane == FAST
        )
        longest = max(fast, key=lambda rival: (rival.length, -rival.serial))
        return Verdict("cut", "kv") if longest is member else None

    def _warms_up(self, view: View) -> bool:
        first_epoch = math.ceil(len(view.prompts) / view.wanted)
        return view.step <= min(self.config.warmup_steps, first_epoch)

    def _is_surely_short(self, member: Member, view: View) -> bool:
        length = view.predictor.predict(member.group.plan.prompt, member.group.finished_lengths)
        return (
            length.n >= self.config.min_count
            and length.mean + self.config.stds * length.std < scaled(self.config.threshold, view.budget)
            and length.std <= self.config.max_spread * length.mean
        )

    def _scale(self, member: Member, view: View) -> float:
        stats = view.history.stats(member.group.plan.prompt.id)
        keeps_failing = stats is not None and stats.zero_streak >= self.config.failing_streak
        return self.config.failing_scale if keeps_failing else 1.0
