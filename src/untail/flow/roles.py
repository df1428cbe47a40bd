"""The roles of a training run, as the loop calls them, and the way to run all of them in this process.

Invariant: what goes in and out of a role can be pickled, and every call is awaited, so that a role may as well live in
another process. In this process engine and learner share one set of weights: an update is a version bump, not a copy,
and it happens only while the engine is paused.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from torch import Tensor

from untail.backends.native import NativeBackend
from untail.config import Recipe
from untail.draft import build as drafting
from untail.engine.engine import Engine
from untail.engine.models.folder import save_folder
from untail.engine.models.load import LoadedModel
from untail.errors import UserError
from untail.flow.channel import Channel
from untail.flow.in_turn import InTurn, build_beside
from untail.history import earlier
from untail.history.store import History
from untail.learn import checkpoint
from untail.learn.memory import gauge_of
from untail.learn.pack import MicroBatch
from untail.learn.rules import refuse_blind
from untail.learn.trainer import Trainer
from untail.rewards.scorer import PartialScore, Score, Scorer
from untail.rollout import memory
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.turns import ChatVoice, Turns, build_environment
from untail.rollout.validate import validate
from untail.types import Batch, Event, Group, Prompt, SamplingParams, Trajectory

T = TypeVar("T")
Tables = dict[str, dict[str, Any]]
"""What scores each task, by its name."""


class LocalJudge:
    """An engine and a scorer: what it takes to evaluate a model."""

    def __init__(self, recipe: Recipe, model: LoadedModel, rewards: Tables, partials: Tables | None = None):
        self.recipe = recipe
        self.model = model
        config = recipe.engine
        if recipe.deterministic:
            # What the cache holds would depend on where a run was resumed, and with it the rounding; keys and values
            # of older weights are gone by then.
            config = config.model_copy(update={"prefix_cache": False, "kv_after_update": "recompute"})
        # How many tokens a step gives depends on what drafters know, and not all of that is in a checkpoint.
        self.speculator = None if recipe.deterministic else drafting.build(recipe.draft, recipe.seed)
        decode = partial(model.tokenizer.decode, skip_special=False)
        engine = Engine(model.decoder, config, decode, self.speculator)
        self.backend = NativeBackend(engine, recipe.deterministic)
        self.scorer = Scorer(rewards, **recipe.reward.model_dump(), partials=partials)
        self.stop_ids = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
        self.turns = self._make_turns(engine)
        self.to_close = AsyncExitStack()  # in the order opposite to this
        self.to_close.push_async_callback(self.scorer.close)
        self.to_close.push_async_callback(self.backend.close)

    def _make_turns(self, engine: Engine) -> Turns | None:
        environment = build_environment(self.recipe, self.backend.capabilities, "native")
        if environment is None:
            return None
        voice, limits = ChatVoice(self.model.tokenizer), engine.limits
        return Turns(environment, voice, self.score, self.backend.clock, limits.longest, limits.vocab, self.recipe.seed)

    async def start(self) -> None:
        await self.scorer.start()

    def now(self) -> float:
        """The clock that events are stamped with."""
        return self.backend.clock.now()

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        rollout = self.recipe.rollout
        sampling = SamplingParams(
            temperature,
            stop_ids=self.stop_ids,
            stop_strings=self.turns.environment.stop_strings if self.turns else (),
            policy_temperature=rollout.temperature,
        )
        slots, label, seed = self.recipe.engine.max_seqs, f"valid-{step}", self.recipe.seed
        longest, turns = rollout.max_tokens, self.turns
        return await validate(self.backend, slots, prompts, self.score, sampling, longest, label, seed, turns)

    async def score(self, trajectory: Trajectory) -> Score:
        """Of its last turn: what came before led to it."""
        trajectory.text = self.model.tokenizer.decode(trajectory.tokens[trajectory.turn_begin :])
        return await self.scorer.score(trajectory.prompt, trajectory.text)

    async def close(self) -> None:
        await self.to_close.aclose()


class LocalRoles(LocalJudge):
    """All roles of a training run."""

    def __init__(
        self,
        recipe: Recipe,
        model: LoadedModel,
        rewards: Tables,
        prompts: list[Prompt],
        partials: Tables | None = None,
    ):
        super().__init__(recipe, model, rewards, partials)
        self.has_partials = bool(partials)
        self.prompts = prompts
        # A thread of our own: those of `asyncio.to_thread` may all be with tools that never come back.
        self._thread = ThreadPoolExecutor(1, "untail-learner")
        self.to_close.callback(self._thread.shutdown)
        self.mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
        self.mechanisms.check(self.backend.capabilities, "native")
        drafting.refuse_if_it_cannot(recipe.draft, self.backend.capabilities.draft, "native")
        self.drafters = self.speculator.learning if self.speculator is not None else []
        temperature, longest = recipe.rollout.temperature, recipe.rollout.max_tokens
        hear = self._tell_drafters if self.drafters else None
        make_trainer = partial(Trainer, model.decoder, recipe.learn, temperature, longest, hear)
        self.trainer = build_beside(self.backend.engine, make_trainer)
        self._in_turn = InTurn(self.backend, self.trainer, gauge_of(model.decoder.embed.device))
        gives = self.backend.capabilities
        refuse_blind(self.trainer.rules, "native", entropy=gives.entropy != "none", logprobs=gives.logprobs)

    def refuse_bad_history(self) -> str | None:
        """Before a new run has a folder. What to tell the user of one that is of no use."""
        if self.recipe.history is None:
            return None
        return earlier.refuse_bad(self.recipe.history, self.recipe.model, self.model.tokenizer.identity)

    async def begin(self, folder: Path, is_new: bool) -> None:
        """Remember in the run's folder; a new run starts with the earlier history that it was handed."""
        recipe, path = self.recipe, folder / earlier.NAME
        made_with = recipe.model, self.model.tokenizer.identity
        if is_new and recipe.history is not None:
            earlier.copy(recipe.history, path, *made_with)
        if not is_new and not path.exists():
            raise UserError(f"the run's history {path} is gone; put it back, or start a new run in another folder")
        self.history = History.open(path, *made_with)
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
            partial=self.partial if self.has_partials else None,
            turns=self.turns,
            wants_past=self.speculator is not None and self.speculator.wants_past,
        )
        self.to_close.push_async_callback(self.controller.close)
        for drafter in self.drafters:
            drafter.start()
            self.to_close.callback(drafter.close)
        await self.start()

    async def partial(self, trajectory: Trajectory) -> PartialScore:
        text = self.model.tokenizer.decode(trajectory.tokens[trajectory.turn_begin :])
        return await self.scorer.partial(trajectory.prompt, text)

    async def roll_out(self, step: int, channel: Channel[Group | Event]) -> None:
        """Events and groups go to the channel, which is closed in the end; a failure goes the same way."""
        try:
            for group in await self._roll_out(step, channel.put):
                channel.put(group)
        except Exception as error:
            channel.close(error)
        else:
            channel.close()

    async def _roll_out(self, step: int, emit: Callable[[Event], None]) -> list[Group]:
        for drafter in self.drafters:
            drafter.begin_rollout()
        try:
            return await self.controller.roll_out(step, emit)
        finally:
            for drafter in self.drafters:
                await self._aside(drafter.end_rollout)

    async def underway(self) -> list[Group]:
        """What the step left for later ones, if the learner trains such things ahead."""
        return [] if self.recipe.learn.bridge is None else self.controller.underway()

    async def _aside(self, work: Callable[..., T], *about: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *about))

    async def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch and publish the weights under the step's number as their version."""
        await self.backend.pause("keep")
        await self._in_turn.learn()
        figures = await self._aside(self._update, batch)
        await self.backend.load_weights(None, batch.step)
        await self._in_turn.sample()
        return figures

    def _update(self, batch: Batch) -> dict[str, float]:
        """Drafters hear the learner's pass."""
        figures = self.trainer.update(batch)
        for drafter in self.drafters:
            drafter.after_update()
            figures |= {f"{drafter.name}_{name}": value for name, value in drafter.learned().items()}
        return figures

    def _tell_drafters(self, micro: MicroBatch, hidden_TD: Tensor) -> None:
        for drafter in self.drafters:
            drafter.hear_pass(micro, hidden_TD)

    def remember(self) -> None:
        """What is saved next is the rollout as it is now: a step that is broken off later leaves no trace in it."""
        self._memory = memory.remember(self.controller.stage)
        if self.speculator is not None:
            self.speculator.remember()

    async def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        tensors, numbers = self.trainer.state_dict()
        self.history.commit()
        state = {"trainer": numbers, "records": self.history.count(), "rollout": memory.written(self._memory), **state}
        if self.speculator is not None:
            drafted, state["draft"] = self.speculator.state_dict()
            tensors |= drafted
        return await self._aside(checkpoint.save, folder, step, tensors, state, keep)

    async def restore(self, path: Path) -> dict[str, Any]:
        """Weights, optimizer and version as they were; the rest of what was saved comes back."""
        saved = checkpoint.load(path)
        self.trainer.load_state_dict(saved.tensors, saved.state["trainer"])
        self.history.truncate(saved.step)
        self._refuse_lost_history(path, saved.state)
        self._restore_rollout(path, saved.state)
        if self.speculator is not None:
            self.speculator.load_state_dict(saved.tensors, saved.state["draft"])
        if saved.step:
            await self.backend.load_weights(None, saved.step)
        return saved.state

    def _refuse_lost_history(self, path: Path, state: dict[str, Any]) -> None:
        """It cannot be made again from the events: they hold neither token ids nor what an earlier run handed over."""
        found, needed = self.history.count(), state.get("records")
        if needed is not None and found != needed:
            raise UserError(
                f"{path.parents[1] / earlier.NAME} has {found} records where the checkpoint {path.name} was made with "
                f"{needed}: it was emptied or replaced; put it back, or start a new run in another folder"
            )

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
            await self._aside(save_folder, self.model.decoder, self.model.tokenizer, folder)
            for drafter in self.drafters:
                await self._aside(drafter.export, folder.parent / "drafter")
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write the model to {folder}: {error}; the last checkpoint is intact: make room, then --resume"
            ) from error
