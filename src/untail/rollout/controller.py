"""The rollout: prompts in, finished and scored groups out.

Invariant: at most `concurrency` trajectories run at once, each is scored once, and a group is passed on when all of its
trajectories are. Everything that happens to a trajectory is in the event log.
"""

import asyncio
from contextlib import aclosing
from statistics import fmean

from untail.backends.base import Backend
from untail.config import RolloutConfig
from untail.flow.channel import Channel
from untail.observe.events import JsonLines
from untail.rewards.scorer import Scorer
from untail.tokenizer import Tokenizer
from untail.types import Group, Prompt, SamplingParams, SequenceSpec, Trajectory, stream_key


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

    async def roll_out(self, step: int, prompts: list[Prompt], channel: Channel[Group], log: JsonLines | None) -> None:
        """Sample `config.group` trajectories for each prompt; groups go to the channel as they finish, then it
        closes."""
        await self._run(f"train-{step}", step, prompts, self.config.group, self.config.temperature, channel, log)

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        """One scored trajectory per prompt, outside the event log; nothing is ever cancelled here."""
        channel: Channel[Group] = Channel()
        running = asyncio.create_task(self._run(f"valid-{step}", step, prompts, 1, temperature, channel, None))
        trajectories = [trajectory async for group in channel for trajectory in group.trajectories]
        await running
        return trajectories

    async def _run(
        self,
        label: str,
        step: int,
        prompts: list[Prompt],
        group: int,
        temperature: float,
        channel: Channel[Group],
        log: JsonLines | None,
    ) -> None:
        slots = asyncio.Semaphore(self.concurrency)

        async def finish(prompt: Prompt) -> None:
            names = [f"{label}/{prompt.id}/{number}" for number in range(group)]
            runs = (self._trajectory(name, step, prompt, temperature, slots, log) for name in names)
            await channel.put(Group(prompt, await asyncio.gather(*runs)))

        try:
            async with asyncio.TaskGroup() as tasks:
                for prompt in prompts:
                    tasks.create_task(finish(prompt))
        except ExceptionGroup as errors:
            await channel.close(errors.exceptions[0])
        else:
            await channel.close()

    async def _trajectory(
        self, name: str, step: int, prompt: Prompt, temperature: float, slots: asyncio.Semaphore, log: JsonLines | None
    ) -> Trajectory:
        trajectory = Trajectory(name, prompt, stream_key(self.seed, name))
        async with slots:
            self._record(log, "start", step, trajectory, prompt=prompt.id)
            await self._generate(trajectory, temperature)
            self._record(
                log,
                "end",
                step,
                trajectory,
                tokens=len(trajectory.tokens),
                prompt_tokens=len(prompt.tokens),
                end=trajectory.end,
                versions=[trajectory.version[0], trajectory.version[-1]],
                entropy=fmean(trajectory.entropy),
            )
        trajectory.text = self.tokenizer.decode(trajectory.tokens)
        score = await self.scorer.score(prompt, trajectory.text)
        trajectory.reward, trajectory.failure = score.value, score.failure
        self._record(log, "score", step, trajectory, reward=score.value, failure=score.failure)
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

    def _record(self, log: JsonLines | None, event: str, step: int, trajectory: Trajectory, **fields) -> None:
        if log is not None:
            log.write({"e": event, "t": self.backend.clock.now(), "step": step, "id": trajectory.id, **fields})
