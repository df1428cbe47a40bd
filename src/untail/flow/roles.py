"""The roles of a training run, as the loop calls them, and the way to run all of them in this process.

Invariant: what goes in and out of a role can be pickled, and every call is awaited, so that a role may as well live in
another process. In this process engine and learner share one set of weights: an update is a version bump, not a copy,
and it happens only while the engine is paused.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from untail.backends.native import NativeBackend
from untail.config import Recipe
from untail.engine.engine import Engine
from untail.engine.models.folder import save_folder
from untail.engine.models.load import LoadedModel
from untail.errors import UserError
from untail.flow.channel import Channel
from untail.learn import checkpoint
from untail.learn.trainer import Trainer
from untail.rewards.scorer import Scorer
from untail.rollout.controller import Controller
from untail.types import Batch, Event, Group, Prompt, Trajectory


class LocalRoles:
    def __init__(self, recipe: Recipe, model: LoadedModel, rewards: dict[str, dict[str, Any]], learns: bool = True):
        """Without `learns` there is no trainer, and no memory for its optimizer: for evaluation."""
        self.model = model
        config = recipe.engine
        if recipe.deterministic:
            # What the cache holds would depend on where a run was resumed, and with it the rounding.
            config = config.model_copy(update={"prefix_cache": False})
        engine = Engine(model.decoder, config, partial(model.tokenizer.decode, skip_special=False))
        self.backend = NativeBackend(engine, recipe.deterministic)
        self.scorer = Scorer(rewards, **recipe.reward.model_dump())
        if learns:
            self.trainer = Trainer(model.decoder, recipe.learn, recipe.rollout.temperature)
        stops = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
        self.controller = Controller(
            self.backend, self.scorer, model.tokenizer, recipe.rollout, stops, config.max_seqs, recipe.seed
        )

    async def start(self) -> None:
        await self.scorer.start()

    def now(self) -> float:
        """The clock that events are stamped with."""
        return self.backend.clock.now()

    async def roll_out(self, step: int, prompts: list[Prompt], channel: Channel[Group | Event]) -> None:
        """Events and groups go to the channel, which is closed in the end; a failure goes the same way."""
        try:
            await self.controller.roll_out(step, prompts, channel.put)
        except Exception as error:
            await channel.close(error)
        else:
            await channel.close()

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        return await self.controller.validate(step, prompts, temperature)

    async def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch and publish the weights under the step's number as their version."""
        await self.backend.pause("keep")
        figures = await asyncio.to_thread(self.trainer.update, batch)
        await self.backend.load_weights(None, batch.step)
        await self.backend.resume()
        return figures

    async def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        tensors, numbers = self.trainer.state_dict()
        return await asyncio.to_thread(checkpoint.save, folder, step, tensors, {"trainer": numbers, **state}, keep)

    async def restore(self, path: Path) -> dict[str, Any]:
        """Weights, optimizer and version as they were; the rest of what was saved comes back."""
        saved = checkpoint.load(path)
        self.trainer.load_state_dict(saved.tensors, saved.state["trainer"])
        if saved.step:
            await self.backend.load_weights(None, saved.step)
        return saved.state

    async def export(self, folder: Path) -> None:
        try:
            await asyncio.to_thread(save_folder, self.model.decoder, self.model.tokenizer, folder)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write the model to {folder}: {error}; the last checkpoint is intact: make room, then --resume"
            ) from error

    async def close(self) -> None:
        try:
            await self.backend.close()
        finally:
            await self.scorer.close()
