"""6.5, tail batching (RollPacker): short rounds start 1.25 x the prompts with 1.25 x the samples and keep the first
that finish; the prompts left over are collected into a long round of their own, which waits for all.

With the defaults a short step leaves a quarter of a batch over, so that about one step in five is long.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Finish, Mechanism, View
from untail.types import Group, Prompt


@MECHANISMS.register("tail_batch")
class TailBatch(Mechanism, Admit, Finish):
    sections = "6.5"
    rest = "cancel"
    contradicts = ("defer", "close")  # what is left over is asked anew, in a long round that waits for all

    class Config(Strict):
        prompts: Annotated[float, Field(ge=1)] = 1.25
        samples: Annotated[float, Field(ge=1)] = 1.25

    def __init__(self, config: Any):
        super().__init__(config)
        self._left_over: list[str] = []  # prompt ids

    def rank(self, view: View) -> Iterator[Prompt] | None:
        """A long round begins with those that were left over."""
        if not self._is_long(view):
            return None
        known = {prompt.id: prompt for prompt in view.prompts}
        dropped = {group.prompt.id for group in view.dropped}
        collected = [known[name] for name in self._left_over if name in known and name not in dropped]
        return chain(collected, view.next_in_order())

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        if self._is_long(view):
            return plan
        if plan.prompt.id in self._left_over:
            return None  # its turn comes in the long round
        plan.size = math.ceil(plan.size * self.config.samples)
        return plan

    def starts(self, view: View) -> int:
        groups = view.wanted if self._is_long(view) else math.ceil(view.wanted * self.config.prompts)
        return groups - len(view.groups) - len(view.ready)

    def closes_at(self, view: View) -> float:
        return view.now if len(view.ready) >= view.wanted else math.inf

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        """`view.groups` are those that the step did not wait for."""
        settled = {group.prompt.id for group in (*batch, *view.dropped)}
        self._left_over = [name for name in self._left_over if name not in settled]
        self._left_over += [group.plan.prompt.id for group in view.groups]

    def state(self) -> dict[str, Any]:
        return {"left_over": self._left_over}

    def restore(self, state: dict[str, Any]) -> None:
        self._left_over = list(state["left_over"])

    def _is_long(self, view: View) -> bool:
        return len(self._left_over) >= view.wanted
