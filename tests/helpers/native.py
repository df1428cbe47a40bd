"""Steps of a recipe on the native engine with the tiny model, without processes: rewards are made up."""

import copy
from collections.abc import Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from untail.backends.native import NativeBackend
from untail.config import Recipe
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import LoadedModel, load_model
from untail.envs import Environment
from untail.history.store import History
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.rollout.points import Mechanism
from untail.rollout.turns import ChatVoice, Turns
from untail.tasks.load import load_tasks
from untail.types import Prompt, Trajectory

from .steps import mechanisms_of


@cache
def tiny() -> LoadedModel:
    """Shared: its weights are not to be changed."""
    return load_model("tiny", "cpu")


def tiny_copy() -> Decoder:
    return copy.deepcopy(tiny().decoder)


@cache
def arithmetic(count: int = 16) -> tuple[Prompt, ...]:
    return tuple(load_tasks({"name": "arithmetic", "size": count}, tiny().tokenizer, 256).prompts)


async def odd_lengths_win(trajectory: Trajectory) -> Score:
    return Score(float(len(trajectory.tokens) % 2))


@asynccontextmanager
async def native_controller(
    recipe: Recipe,
    extra: Sequence[Mechanism] = (),
    decoder: Decoder | None = None,
    engines: int = 1,
    deterministic: bool = False,
    history: History | None = None,
    seed: int = 0,
    environment: Environment | None = None,
    **engine: Any,
):
    """A controller over engines that share one decoder."""
    config = recipe.engine.model_copy(update={"max_seqs": 8, "kv_blocks": 256, **engine})
    shared = decoder or tiny().decoder
    decode = partial(tiny().tokenizer.decode, skip_special=False)
    backends = [NativeBackend(Engine(shared, config, decode), deterministic) for _ in range(engines)]
    limits, voice = backends[0].engine.limits, ChatVoice(tiny().tokenizer)
    turns = environment and Turns(
        environment, voice, odd_lengths_win, backends[0].clock, limits.longest, limits.vocab, seed
    )
    history = history or History.open(None, "tiny", "tiny")
    controller = Controller(
        list(backends), config.max_seqs, list(arithmetic()), odd_lengths_win, recipe.rollout,
        mechanisms_of(recipe, extra), history, shared.shape.vocab, shared.shape.eos_ids, seed, turns=turns,
    )  # fmt: skip
    try:
        yield controller
    finally:
        await controller.close()
        for backend in backends:
            await backend.close()
        history.close()
