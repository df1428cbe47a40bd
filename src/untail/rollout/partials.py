"""Partial scores: what a task says about a response that is not finished.

Invariant: a member has one on its way at most; one that fails says nothing, and the event names it. While a member at a
boundary waits for its score it counts as busy, and its group is not asked. Where time is ours, it stands still until
the score is there.
"""

import asyncio

from untail.rewards.scorer import PartialScore
from untail.rollout.live import Member, State
from untail.rollout.stage import Stage


class Partials:
    def __init__(self, stage: Stage):
        self.stage = stage
        self._tasks: set[asyncio.Task[None]] = set()
        self.wanted = stage.mechanisms.wants_partial and stage.partial is not None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ask(self, member: Member) -> None:
        """About what it has now, unless that is known or a score is on its way. Pre: it runs or is at a boundary."""
        if not self.wanted or member.ghost is not None:
            return
        tokens = len(member.trajectory.tokens)
        if not member.partial_due and member.partial_at != tokens:
            member.partial_due, member.partial_at = True, tokens
            task = asyncio.create_task(self._score(member))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if member.partial_due and member.state is State.WAITING:
            self.stage.busy.add(member)

    def hear(self, member: Member, score: PartialScore) -> None:
        stage = self.stage
        member.partial_due = False
        if score.failure is not None:
            stage.record("partial", id=member.id, failure=score.failure)
        elif member.partial_at >= member.trajectory.turn_begin:  # otherwise it is about the turn before
            member.partial = score.value
        if member.state is State.WAITING:
            stage.busy.discard(member)
            if member.rested_in == stage.view.step:
                self.ask(member)  # it came to its boundary meanwhile

    async def _score(self, member: Member) -> None:
        stage = self.stage
        assert stage.partial is not None
        try:
            async with stage.clock.frozen():
                score = await stage.partial(member.trajectory)
        except Exception as error:  # whoever scores, it must not cost the trajectory
            score = PartialScore(None, f"raised: {type(error).__name__}: {error}")
        stage.inbox.put_nowait((member.id, score))
