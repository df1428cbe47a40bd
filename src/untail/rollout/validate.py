"""Validation: one trajectory per held-out prompt.

Invariant: no mechanism has a say here. Every prompt is answered to its end or to the longest response, over as many
turns as its environment wants, and nothing is ever cancelled, whatever the recipe does in training.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count

from untail.backends.base import Backend, EngineLost
from untail.rewards.scorer import Score
from untail.rollout.turns import Turns
from untail.types import Chunk, Prompt, SamplingParams, SequenceSpec, Trajectory, stream_key

MOST_ATTEMPTS = 300


async def validate(
    backend: Backend,
    concurrency: int,
    prompts: list[Prompt],
    score: Callable[[Trajectory], Awaitable[Score]],
    sampling: SamplingParams,
    max_tokens: int,
    label: str,
    seed: int,
    turns: Turns | None = None,
    others: Sequence[Backend] = (),
) -> list[Trajectory]:
    """`label` keeps the random streams of different validations apart. While an environment is at work, its trajectory
    holds no slot. `others` are engines that share the work; an answer whose engine is lost is begun again elsewhere."""
    engines = [(each, asyncio.Semaphore(concurrency)) for each in (backend, *others)]

    async def answer(prompt: Prompt, number: int) -> Trajectory:
        name = f"{label}/{number}"
        for attempt in count():
            trajectory = Trajectory(name, prompt, stream_key(seed, name))
            engine, slots = engines[(number + attempt) % len(engines)]
            try:
                await _generate(engine, slots, trajectory, sampling, max_tokens, turns)
                break
            except EngineLost:
                if attempt == MOST_ATTEMPTS:
                    raise
                await asyncio.sleep(1.0)  # it may come back
        async with backend.clock.frozen():
            scored = await score(trajectory)
        trajectory.reward, trajectory.failure = scored.value, scored.failure
        return trajectory

    tasks = [asyncio.create_task(answer(prompt, number)) for number, prompt in enumerate(prompts)]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _generate(
    backend: Backend,
    slots: asyncio.Semaphore,
    trajectory: Trajectory,
    sampling: SamplingParams,
    max_tokens: int,
    turns: Turns | None,
) -> None:
    spec = SequenceSpec(
        trajectory.id,
        trajectory.prompt.tokens,
        max_tokens,
        trajectory.stream,
        sampling,
        chunk=max_tokens,
        hold=turns is not None,
    )
    reply: list[int] | None = None
    async with aclosing(backend.generate(spec)) as chunks:
        while True:
            async with slots:
                if reply is not None:
                    assert turns is not None
                    budget = min(max_tokens - trajectory.length, turns.room(trajectory))
                    await backend.append(trajectory.id, reply, budget)
                await _one_turn(chunks, trajectory)
            if turns is None or not turns.may_go_on(trajectory, max_tokens - trajectory.length):
                return
            reply = await turns.reply(trajectory, trajectory.version[-1])
            if reply is None:
                return


async def _one_turn(chunks: AsyncIterator[Chunk], trajectory: Trajectory) -> None:
    async for chunk in chunks:
        trajectory.take(chunk)
        if chunk.end == "boundary":
            trajectory.end = "length"
        if chunk.end is not None:
            return
