"""The roles of a training run, as the loop calls them, and the way to run all of them in this process.

Invariant: what goes in and out of a role can be pickled, and every call is awaited, so that a role may as well live in
another process. In this process engine and learner share one set of weights: an update is a version bump, not a copy,
and it happens only while the engine is paused.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from untail.backends.native import NativeBackend
from untail.config import Recipe
from untail.engine.engine import Engine
from untail.engine.models.folder import save_folder
from untail.engine.models.load import LoadedModel
from untail.errors import ConfigError, UserError
from untail.flow.channel import Channel
from untail.history.store import History
from untail.learn import checkpoint
from untail.learn.rules import refuse_unfit
from untail.learn.trainer import Trainer
from untail.rewards.scorer import Score, Scorer
from untail.rollout import memory
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.validate import validate
from untail.types import Batch, Event, Group, Prompt, SamplingParams, Trajectory


class LocalJudge:
    """An engine and a scorer: what it takes to evaluate a model."""

    def __init__(self, recipe: Recipe, model: LoadedModel, rewards: dict[str, dict[str, Any]]):
        self.recipe = recipe
        self.model = model
        config = recipe.engine
        if recipe.deterministic:
            # What the cache holds would depend on where a run was resumed, and with it the rounding.
            config = config.model_copy(update={"prefix_cache": False})
        engine = Engine(model.decoder, config, partial(model.tokenizer.decode, skip_special=False))
        self.backend = NativeBackend(engine, recipe.deterministic)
        self.scorer = Scorer(rewards, **recipe.reward.model_dump())
        self.stop_ids = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
        self.to_close = AsyncExitStack()  # in the order opposite to this
        self.to_close.push_async_callback(self.scorer.close)
        self.to_close.push_async_callback(self.backend.close)

    async def start(self) -> None:
        await self.scorer.start()

    def now(self) -> float:
        """The clock that events are stamped with."""
        return self.backend.clock.now()

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        rollout = self.recipe.rollout
        sampling = SamplingParams(temperature, stop_ids=self.stop_ids, policy_temperature=rollout.temperature)
        slots, label, seed = self.recipe.engine.max_seqs, f"valid-{step}", self.recipe.seed
        return await validate(self.backend, slots, prompts, self.score, sampling, rollout.max_tokens, label, seed)

    async def score(self, trajectory: Trajectory) -> Score:
        trajectory.text = self.model.tokenizer.decode(trajectory.tokens)
        return await self.scorer.score(trajectory.prompt, trajectory.text)

    async def close(self) -> None:
        await self.to_close.aclose()


class LocalRoles(LocalJudge):
    """All roles of a training run."""

    def __init__(self, recipe: Recipe, model: LoadedModel, rewards: dict[str, dict[str, Any]], prompts: list[Prompt]):
        super().__init__(recipe, model, rewards)
        self.prompts = prompts
        self.mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
        self.mechanisms.check(self.backend.capabilities, "native")
        self.trainer = Trainer(model.decoder, recipe.learn, recipe.rollout.temperature, recipe.rollout.max_tokens)
        if recipe.learn.bridge is not None and self.mechanisms.rest != "defer":
            raise ConfigError(
                "learn.bridge trains segments of what goes on in the next step, but this recipe's steps leave nothing "
                "over; add mechanisms.defer, or leave learn.bridge out"
            )
        gives = self.backend.capabilities
        refuse_unfit(
            self.trainer.rules,
            "native",
            entropy=gives.entropy != "none",
            logprobs=gives.logprobs,
            lossy=self.mechanisms.lossy,
        )

    async def begin(self, folder: Path) -> None:
        """Remember in the run's folder."""
        recipe = self.recipe
        identity = self.model.tokenizer.identity
        self.history = History.open(folder / "history.sqlite", recipe.model, identity)
        self.to_close.callback(self.history.close)
        self.controller = Controller(
            [self.backend],
            recipe.engine.max_seqs,
            self.prompts,
            self.score,
            recipe.rollout,
            self.mechanisms,
            self.history,
            self.stop_ids,
            self.model.decoder.shape.vocab,
            recipe.seed,
        )
        self.to_close.push_async_callback(self.controller.close)
        await self.start()

    async def roll_out(self, step: int, channel: Channel[Group | Event]) -> None:
        """Events and groups go to the channel, which is closed in the end; a failure goes the same way."""
        try:
            for group in await self.controller.roll_out(step, channel.put):
                channel.put(group)
        except Exception as error:
            channel.close(error)
        else:
            channel.close()

    async def underway(self) -> list[Group]:
        """What the step left for later ones, if the learner trains such things ahead."""
        return [] if self.recipe.learn.bridge is None else self.controller.underway()

    async def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch and publish the weights under the step's number as their version."""
        await self.backend.pause("keep")
        figures = await asyncio.to_thread(self.trainer.update, batch)
        await self.backend.load_weights(None, batch.step)
        await self.backend.resume()
        return figures

    def remember(self) -> None:
        """What is saved next is the rollout as it is now: a step that is broken off later leaves no trace in it."""
        self._memory = memory.save(self.controller.stage)

    async def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        tensors, numbers = self.trainer.state_dict()
        self.history.commit()
        state = {"trainer": numbers, "rollout": self._memory, **state}
        return await asyncio.to_thread(checkpoint.save, folder, step, tensors, state, keep)

    async def restore(self, path: Path) -> dict[str, Any]:
        """Weights, optimizer and version as they were; the rest of what was saved comes back."""
        saved = checkpoint.load(path)
        self.trainer.load_state_dict(saved.tensors, saved.state["trainer"])
        self.history.truncate(saved.step)
        self._restore_rollout(path, saved.state)
        if saved.step:
            await self.backend.load_weights(None, saved.step)
        return saved.state

    def _restore_rollout(self, path: Path, state: dict[str, Any]) -> None:
        try:
            memory.restore(self.controller.stage, state["rollout"])
        except KeyError as error:
            raise UserError(
                f"the checkpoint {path} cannot be continued: {error} is missing, so it is of another version of untail "
                "or the task's prompts have changed; start a new run"
            ) from error

    async def export(self, folder: Path) -> None:
        try:
            await asyncio.to_thread(save_folder, self.model.decoder, self.model.tokenizer, folder)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write the model to {folder}: {error}; the last checkpoint is intact: make room, then --resume"
            ) from error
