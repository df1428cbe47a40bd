"""Validation: one trajectory per held-out prompt.

Invariant: no mechanism has a say here. Every prompt is answered to its end or to the longest response, and nothing is
ever cancelled, whatever the recipe does in training.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from untail.backends.base import Backend
from untail.rewards.scorer import Score
from untail.types import Prompt, SamplingParams, SequenceSpec, Trajectory, stream_key


async def validate(
    backend: Backend,
    concurrency: int,
    prompts: list[Prompt],
    score: Callable[[Trajectory], Awaitable[Score]],
    sampling: SamplingParams,
    max_tokens: int,
    label: str,
    seed: int,
) -> list[Trajectory]:
    """`label` keeps the random streams of different validations apart."""
    slots = asyncio.Semaphore(concurrency)

    async def answer(prompt: Prompt, number: int) -> Trajectory:
        name = f"{label}/{number}"
        trajectory = Trajectory(name, prompt, stream_key(seed, name))
        async with slots:
            await _generate(backend, trajectory, sampling, max_tokens)
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


async def _generate(backend: Backend, trajectory: Trajectory, sampling: SamplingParams, max_tokens: int) -> None:
    spec = SequenceSpec(
        trajectory.id, trajectory.prompt.tokens, max_tokens, trajectory.stream, sampling, chunk=max_tokens
    )
    async with aclosing(backend.generate(spec)) as chunks:
        async for chunk in chunks:
            trajectory.take(chunk)
            if chunk.end == "boundary":
                trajectory.end = "length"
                break
