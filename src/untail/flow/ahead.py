"""Rollouts that run ahead of updates: one after the other, as far as the staleness bound lets them.

Invariant: the rollout of step s begins when that of s - 1 is over and the engines have weights of version s - 1 - lead
or newer. So no token that is sampled in it is more than `lead` versions old when step s is trained; what a step leaves
unfinished is the pool's business (rollout/pool.py). What a rollout gives is kept until its step asks for it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from untail.flow.channel import Channel
from untail.flow.given import Given

RollOut = Callable[[int, Given, int], Awaitable[bool]]
"""Of a step, into a channel, from weights of a version; False if it failed."""


class Ahead:
    def __init__(self, roll_out: RollOut, is_over: Callable[[int], None], lead: int, last: int):
        """`is_over` hears when the rollout of a step is, and before the next begins. No step after `last` is begun."""
        self._roll_out = roll_out
        self._is_over = is_over
        self._lead = lead
        self._last = last
        self._version = 0
        self._newer = asyncio.Event()
        self._given: dict[int, Given] = {}
        self._task: asyncio.Task[None] | None = None

    def published(self, version: int) -> None:
        """The engines have it."""
        self._version = version
        self._newer.set()

    async def give(self, step: int, channel: Given) -> None:
        """What the rollout of the step gives, as it comes."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(step))
        source = self._of(step)
        try:
            async for item in source:
                channel.put(item)
        except Exception as error:
            channel.close(error)
        else:
            channel.close()
            del self._given[step]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, first: int) -> None:
        for step in range(first, self._last + 1):
            while self._version < step - 1 - self._lead:
                self._newer.clear()
                await self._newer.wait()
            if not await self._roll_out(step, self._of(step), self._version):
                return
            self._is_over(step)

    def _of(self, step: int) -> Given:
        return self._given.setdefault(step, Channel(f"rollout {step}"))
