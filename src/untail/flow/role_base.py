"""What all ways to run a training's roles have in common: scoring, the rollout's controller, history, checkpoints.

Invariant: what goes in and out of a role can be pickled, and every call is awaited, so that a role may as well live in
another process. The training loop knows `Roles` and nothing below it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError
from torch import Tensor

from untail.backends.base import Backend
from untail.config import Recipe, RolloutConfig
from untail.draft import build as drafting
from untail.engine.models.load import LoadedModel
from untail.errors import UserError
from untail.flow.given import Given, Giver
from untail.history import earlier
from untail.history.store import History
from untail.learn import checkpoint
from untail.learn.rules import refuse_blind, rules_of
from untail.rewards.scorer import PartialScore, Score, Scorer
from untail.rollout import memory
from untail.rollout.certain import Give
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.stage import Emit
from untail.rollout.turns import ChatVoice, Turns, build_environment
from untail.rollout.validate import validate
from untail.types import Batch, Group, Prompt, SamplingParams, Trajectory

if TYPE_CHECKING:
    from untail.flow.auto import Auto

T = TypeVar("T")
Tables = dict[str, dict[str, Any]]
"""What scores each task, by its name."""


class Judge(ABC):
    """Engines and a scorer: what it takes to evaluate a model."""

    longest: int  # tokens that a sequence can have
    vocab: int
    wants_past: bool  # somebody drafts from earlier responses

    def __init__(self, recipe: Recipe, model: LoadedModel, rewards: Tables, partials: Tables | None = None):
        self.recipe = recipe
        self.model = model
        self.backends = self._seat_engines()
        self.scorer = Scorer(rewards, **recipe.reward.model_dump(), partials=partials)
        self.stop_ids = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
        self.turns = self._make_turns()
        self.to_close = AsyncExitStack()  # in the order opposite to this
        self.to_close.push_async_callback(self.scorer.close)
        for backend in self.backends:
            self.to_close.push_async_callback(backend.close)

    @abstractmethod
    def _seat_engines(self) -> Sequence[Backend]:
        """One or more; `longest`, `vocab` and `wants_past` are theirs."""

    def _make_turns(self) -> Turns | None:
        backend = self.backends[0]
        environment = build_environment(self.recipe, backend.capabilities, "native")
        if environment is None:
            return None
        voice = ChatVoice(self.model.tokenizer)
        return Turns(environment, voice, self.score, backend.clock, self.longest, self.vocab, self.recipe.seed)

    async def start(self) -> None:
        await self.scorer.start()

    def now(self) -> float:
        """The clock that events are stamped with."""
        return self.backends[0].clock.now()

    @property
    def engines(self) -> int:
        return len(self.backends)

    @property
    def devices(self) -> int:
        """Those of engines and learner."""
        return len(self.backends)

    async def validate(self, step: int, prompts: list[Prompt], temperature: float) -> list[Trajectory]:
        rollout = self.recipe.rollout
        sampling = SamplingParams(
            temperature,
            stop_ids=self.stop_ids,
            stop_strings=self.turns.environment.stop_strings if self.turns else (),
            policy_temperature=rollout.temperature,
        )
        slots, label, seed = self.recipe.engine.max_seqs, f"valid-{step}", self.recipe.seed
        longest, turns, (first, *others) = rollout.max_tokens, self.turns, self.backends
        return await validate(first, slots, prompts, self.score, sampling, longest, label, seed, turns, others)

    async def score(self, trajectory: Trajectory) -> Score:
        """Of its last turn: what came before led to it."""
        trajectory.text = self.model.tokenizer.decode(trajectory.tokens[trajectory.turn_begin :])
        return await self.scorer.score(trajectory.prompt, trajectory.text)

    async def close(self) -> None:
        await self.to_close.aclose()


class Roles(Judge):
    """All roles of a training run. What is left to a way to run them: the engines, the learner, and what lies between
    the two."""

    auto: "Auto | None" = None  # what places them, if they may move

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
        gives = self.backends[0].capabilities
        self.mechanisms.check(gives, "native")
        drafting.refuse_if_it_cannot(recipe.draft, gives.draft, "native")
        rules = rules_of(recipe.learn, recipe.rollout.max_tokens)
        refuse_blind(rules, "native", entropy=gives.entropy != "none", logprobs=gives.logprobs)

    @property
    def plan(self) -> dict[str, Any] | None:
        """That they sit where they do, and why, if a plan has put them there."""
        return None

    def should_move(self, row: dict[str, Any], steps_left: int) -> bool:
        """After a step with these metrics: a plan would put them elsewhere by now."""
        return False

    @property
    def hands_on_early(self) -> bool:
        """`hand_on` does something with a group before its step is over."""
        return False

    def hand_on(self, step: int, group: Group) -> None:
        """A group of the step's batch, which is not whole yet: a learner that has devices of its own may begin.
        `update` gets the whole batch all the same."""

    @abstractmethod
    async def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch and publish the weights under the step's number as their version."""

    @abstractmethod
    async def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint needs of the learner: tensors, and what goes into its state."""

    @abstractmethod
    async def relearn(self, path: Path, state: dict[str, Any]) -> None:
        """Learner and engines as they were when this checkpoint was saved with this state."""

    @abstractmethod
    async def write_model(self, folder: Path) -> None:
        """As Hugging Face has it."""

    def refuse_bad_history(self) -> str | None:
        """Before a new run has a folder. What to tell the user of one that is of no use."""
        if self.recipe.history is None:
            return None
        return earlier.refuse_bad(self.recipe.history, self.recipe.model, self.model.tokenizer.identity)

    def rollout_config(self) -> RolloutConfig:
        return self.recipe.rollout

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
            list(self.backends),
            recipe.engine.max_seqs,
            self.prompts,
            self.score,
            self.rollout_config(),
            self.mechanisms,
            self.history,
            self.vocab,
            self.stop_ids,
            recipe.seed,
            partial=self.partial if self.has_partials else None,
            turns=self.turns,
            wants_past=self.wants_past,
        )
        self.to_close.push_async_callback(self.controller.close)
        await self.start()

    async def partial(self, trajectory: Trajectory) -> PartialScore:
        text = self.model.tokenizer.decode(trajectory.tokens[trajectory.turn_begin :])
        return await self.scorer.partial(trajectory.prompt, text)

    async def roll_out(self, step: int, channel: Given) -> None:
        """Events and groups go to the channel as they come, and it is closed in the end; a failure goes the same
        way."""
        await self.roll_out_from(step, channel, step - 1)

    async def roll_out_from(self, step: int, channel: Given, version: int) -> bool:
        """From weights of this version; False if it failed."""
        giver = Giver(channel)
        try:
            await self.sample(step, giver.emit, version, giver.give)
        except Exception as error:
            giver.close(error)
            return False
        giver.close()
        return True

    async def sample(self, step: int, emit: Emit, version: int, give: Give) -> None:
        await self.controller.roll_out(step, emit, version, give, self.hands_on_early)

    async def underway(self) -> list[Group]:
        """What the step left for later ones, if the learner trains such things ahead."""
        return [] if self.recipe.learn.bridge is None else self.controller.underway()

    async def aside(self, work: Callable[..., T], *about: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *about))

    def remember(self) -> None:
        """What is saved next is the rollout as it is now: a step that is broken off later leaves no trace in it."""
        self._memory = memory.remember(self.controller.stage)

    async def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        self.history.commit()
        own = {"records": self.history.count(step), "rollout": memory.written(self._memory)}
        return await self.write_checkpoint(folder, step, own | state, keep)

    async def write_checkpoint(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        tensors, learned = await self.learned()
        return await self.aside(checkpoint.save, folder, step, tensors, learned | state, keep)

    async def restore(self, path: Path) -> dict[str, Any]:
        """Weights, optimizer and version as they were; the rest of what was saved comes back."""
        step, state = checkpoint.step_of(path), checkpoint.read_state(path, "trainer")
        await self.relearn(path, state)
        self.history.truncate(step)
        self._refuse_lost_history(path, step, state)
        self._restore_rollout(path, state)
        return state

    def _refuse_lost_history(self, path: Path, step: int, state: dict[str, Any]) -> None:
        """It cannot be made again from the events: they hold neither token ids nor what an earlier run handed over."""
        found, needed = self.history.count(step), state.get("records")
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
            await self.write_model(folder)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write the model to {folder}: {error}; the last checkpoint is intact: make room, then --resume"
            ) from error
