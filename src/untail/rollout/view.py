"""The controller's rollout, as mechanisms see it (points.View)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from untail.rollout.live import OPEN, LiveGroup, State
from untail.types import Group, Prompt, stream_key

if TYPE_CHECKING:
    from untail.rollout.stage import Stage


class LiveView:
    def __init__(self, stage: Stage):
        self._stage = stage
        self.wanted = stage.config.prompts
        self.group = stage.config.group
        self.budget = stage.config.max_tokens
        self.engines = len(stage.fleet.backends)
        self.concurrency = stage.fleet.slots.total
        self.prompts: Sequence[Prompt] = stage.order.prompts
        self.history = stage.history
        self.predictor = stage.predictor
        self.vocab = stage.vocab
        self.step = 0
        self.began = 0.0
        self.rounds = 0
        self.started = 0
        self.ended = 0
        self.dropped: list[Group] = []
        self.kv_used = 0.0  # as of the last time that something happened

    def begin(self, step: int) -> None:
        self.step, self.began, self.rounds = step, self.now, 0
        self.started, self.ended, self.dropped = self.open, 0, []

    @property
    def now(self) -> float:
        return self._stage.clock.now()

    @property
    def running(self) -> int:
        return self.concurrency - self._stage.fleet.slots.free

    @property
    def open(self) -> int:
        return sum(member.state in OPEN for group in self.groups for member in group.members)

    @property
    def groups(self) -> Collection[LiveGroup]:
        return self._stage.pool.live.values()

    @property
    def ready(self) -> Sequence[Group]:
        return self._stage.pool.ready

    def overdue(self, after: int = 0) -> set[str]:
        return self._stage.pool.overdue(self.step + after)

    def trainable(self) -> int:
        whole = sum(len(group.trajectories) for group in self.ready)
        if self._stage.mechanisms.rest != "close":
            return whole
        return whole + sum(_closes_with(group) for group in self.groups)

    def next_in_order(self) -> Iterator[Prompt]:
        return self._stage.order.draw(self._stage.pool.asks)

    def step_seconds(self, batch: int) -> float:
        return self._stage.fleet.backends[0].step_seconds(batch)

    def rng(self, *key: int | str) -> random.Random:
        return random.Random(stream_key(self._stage.seed, "rng", self.step, *key))


def _closes_with(group: LiveGroup) -> int:
    """Members that it would have if it closed now: rewards that are on their way are waited for, and with fewer than
    two members in its statistics it is cancelled."""
    finished = [member for member in group.members if member.state in (State.SCORING, State.DONE)]
    return len(finished) if sum(member.rule != "mask" for member in finished) >= 2 else 0
