"""The rollout: prompts in, finished and scored groups out.

Invariant: at most `concurrency` trajectories run at once, each is scored once, and a group is passed on when all of its
trajectories are. Everything that happens to a trajectory is an event.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from statistics import fmean
from typing import Any

from untail.backends.base import Backend
from untail.config import RolloutConfig
from untail.rewards.scorer import Scorer
from untail.tokenizer import Tokenizer
from untail.types import Event, Group, Prompt, SamplingParams, SequenceSpec, Trajectory, stream_key

Put = Callable[[Group | Event], Awaitable[None]]
"""Where a rollout's events and groups go."""


class Controller:
    def __init__(
        self,
        backend: Backend,
        scorer: Scorer,
        tokenizer: Tokenizer,
        config: RolloutConfig,
        stop_ids: tuple[int, ...],
        concurrency: int,
        seed: int,
    ):
        self.backend = backend
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.config = config
        self.stop_ids = stop_ids
        self.concurrency = concurrency
        self.seed = seed

    async def roll_out(self, step: int, prompts: list[Prompt], put: Put) -> None:
        """Sample `config.group` trajectories per prompt; `put` gets events as they happen, groups as they finish."""
        await self._run(f"train-{step}", step, prompts, self.config.group, self.config.temperature, put)

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        """One scored trajectory per prompt; its events are not kept, and nothing is ever cancelled here."""
        trajectories: list[Trajectory] = []

        async def keep(item: Group | Event) -> None:
            if isinstance(item, Group):
                trajectories.extend(item.trajectories)

        await self._run(f"valid-{step}", step, prompts, 1, temperature, keep)
        return trajectories

    async def _run(
        self, label: str, step: int, prompts: list[Prompt], group: int, temperature: float, put: Put
    ) -> None:
        slots = asyncio.Semaphore(self.concurrency)

        async def finish(prompt: Prompt) -> None:
            names = [f"{label}/{prompt.id}/{number}" for number in range(group)]
            async with asyncio.TaskGroup() as siblings:
                runs = [
                    siblings.create_task(self._trajectory(name, step, prompt, temperature, slots, put))
                    for name in names
                ]
            await put(Group(prompt, [run.result() for run in runs]))

        try:
            async with asyncio.TaskGroup() as tasks:
                for prompt in prompts:
                    tasks.create_task(finish(prompt))
        except ExceptionGroup as errors:
            raise _first(errors) from errors

    async def _trajectory(
        self, name: str, step: int, prompt: Prompt, temperature: float, slots: asyncio.Semaphore, put: Put
    ) -> Trajectory:
        trajectory = Trajectory(name, prompt, stream_key(self.seed, name))

        async def record(event: str, **fields: Any) -> None:
            await put({"e": event, "t": self.backend.clock.now(), "step": step, "id": name, **fields})

        async with slots:
            await record("start", prompt=prompt.id)
            await self._generate(trajectory, temperature)
            await record(
                "end",
                tokens=len(trajectory.tokens),
                prompt_tokens=len(prompt.tokens),
                end=trajectory.end,
                versions=[trajectory.version[0], trajectory.version[-1]],
                entropy=fmean(trajectory.entropy),
            )
        trajectory.text = self.tokenizer.decode(trajectory.tokens)
        score = await self.scorer.score(prompt, trajectory.text)
        trajectory.reward, trajectory.failure = score.value, score.failure
        await record("score", reward=score.value, failure=score.failure)
        return trajectory

    async def _generate(self, trajectory: Trajectory, temperature: float) -> None:
        """To its end, or to the longest response allowed: then it is cut off there."""
        sampling = SamplingParams(temperature, stop_ids=self.stop_ids, policy_temperature=self.config.temperature)
        prompt = trajectory.prompt.tokens
        spec = SequenceSpec(trajectory.id, prompt, self.config.max_tokens, trajectory.stream, sampling)
        async with aclosing(self.backend.generate(spec)) as chunks:
            async for chunk in chunks:
                trajectory.take(chunk)
                if chunk.end == "boundary":
                    trajectory.end = "length"
                    break


def _first(errors: BaseExceptionGroup) -> BaseException:
    """What happened first; the rest is its consequence."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
