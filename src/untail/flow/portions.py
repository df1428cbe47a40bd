"""A batch that reaches the learner in portions, while the rest of it is still sampled (9.2).

Invariant: what the learner was handed and what `rest_of` leaves of a batch are the batch, each group once. Portions
only add to a gradient that nobody has seen: a learner that dies takes them along, and the rest is the whole batch.
"""

import asyncio
import time

from untail.config import Recipe
from untail.errors import ConfigError
from untail.flow.switch import Turns
from untail.flow.worker import WorkerGroup
from untail.learn.rules import needs_whole_batch, rules_of
from untail.types import Batch, Group

Learned = tuple[float, float]
"""Seconds that the learner had for a portion, and when it was done, by `time.perf_counter`."""


class Portions:
    def __init__(self, turns: Turns, learner: WorkerGroup, batch: int):
        """`batch`: groups of a whole one, which is handed on as it always was."""
        self._turns = turns
        self._learner = learner
        self._batch = batch
        self._step = 0
        self._last = 0.0  # when the newest group came
        self._waiting: list[Group] = []
        self._sent: set[str] = set()
        self._under_way: list[asyncio.Task[Learned]] = []

    def take(self, step: int, group: Group, size: int) -> None:
        """One of the step's batch; with `size` of them together the learner begins."""
        if step != self._step:
            self.forget()
            self._step = step
        if size >= self._batch:
            return
        self._waiting.append(group)
        self._last = time.perf_counter()
        if len(self._waiting) >= size:
            portion = Batch(step, sorted(self._waiting, key=lambda group: group.id))
            self._sent |= {group.id for group in portion.groups}
            self._waiting = []
            task = asyncio.create_task(self._learn(portion))
            task.add_done_callback(_seen)
            self._under_way.append(task)

    async def _learn(self, portion: Batch) -> Learned:
        seconds = max(await self._turns.run(self._learner, "learn", portion))
        return seconds, time.perf_counter()

    def rest_of(self, batch: Batch) -> Batch:
        """What the learner has not been handed."""
        return Batch(batch.step, [group for group in batch.groups if group.id not in self._sent], batch.underway)

    async def arrive(self) -> dict[str, float]:
        """Once all that was sent is learned; raises what went wrong with it. `early_s` in the figures: the learner's
        seconds before the batch was whole."""
        learned = [await task for task in self._under_way]
        if not learned:
            return {}
        early = sum(max(0.0, seconds - max(0.0, done - self._last)) for seconds, done in learned)
        return {"portions": len(learned), "early_s": early}

    def forget(self) -> None:
        """The learner has nothing of it any more."""
        for task in self._under_way:
            task.cancel()
        self._waiting, self._sent, self._under_way = [], set(), []

    async def close(self) -> None:
        under_way = self._under_way
        self.forget()
        await asyncio.gather(*under_way, return_exceptions=True)


def _seen(task: asyncio.Task[Learned]) -> None:
    """Of several that a lost learner had, one is waited for; the others must not complain that nobody did."""
    if not task.cancelled():
        task.exception()


def portion_of(recipe: Recipe) -> int:
    """Groups that the learner is handed at a time, by the recipe alone."""
    return recipe.flow.portion or recipe.rollout.prompts


def refuse_portion(recipe: Recipe) -> None:
    """One that cannot be; the whole batch always can, where no plan decides."""
    flow, batch = recipe.flow, recipe.rollout.prompts
    if flow.portion is None:
        return
    if flow.mode == "auto":
        raise ConfigError(
            f'flow.portion = {flow.portion} is for the plan to choose with flow.mode = "auto"; drop it, or set a mode'
        )
    if flow.portion == batch:
        return
    if flow.portion > batch:
        raise ConfigError(
            f"flow.portion = {flow.portion}, but a step has rollout.prompts = {batch} groups; ask for {batch} or fewer"
        )
    if flow.mode != "disaggregated":
        raise ConfigError(
            f"flow.portion = {flow.portion} has the learner begin while engines sample, and with flow.mode = "
            f'"{flow.mode}" it has no device of its own to do so; drop it, or take flow.mode = "disaggregated"'
        )
    reason = needs_whole_batch(recipe.learn, rules_of(recipe.learn, recipe.rollout.max_tokens))
    if reason is not None:
        raise ConfigError(
            f"flow.portion = {flow.portion} has the learner begin before a batch is whole, but {reason}; drop one of "
            "the two"
        )
