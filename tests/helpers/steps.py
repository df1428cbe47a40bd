"""Whole steps of a recipe, with everything that a test may ask about them: the real controller and mechanisms, over
simulated engines in virtual time or over any other backends."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import assume

from untail.backends.base import Backend
from untail.backends.laws import Draw, Law, LogNormal, reward_of, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import Recipe, load_recipe
from untail.envs import Environment
from untail.errors import ConfigError
from untail.history.store import History
from untail.observe.accounts import Accounts, step_accounts
from untail.observe.fates import Fates
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.points import Mechanism, Place, Watch
from untail.rollout.turns import Turns
from untail.simulate.run import SimVoice
from untail.types import Event, Group, Prompt, Trajectory

SURE = 0.005  # nats: p > 0.99, and far below what `collapse` calls low
# The watchers' windows are made for thousands of tokens; these are for dozens.
SMALL_WINDOWS = {
    "loop": {"window": 24, "period": 8, "repeats": 3, "cycle_tokens": 8},
    "collapse": {"window": 16},
    "babble": {"window": 16},
    "recital": {"window": 16},
    "group_size": {"min": 2},
}


@dataclass(frozen=True)
class Tail(LogNormal):
    """Short responses and a long tail. `sure` of them are sure of every token, which watchers take for a collapse."""

    median: float = 24.0
    p99: float = 250.0
    sure: float = 0.15

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        drawn = super().draw(prompt, stream)
        return drawn._replace(entropy=SURE) if self._uniform(prompt, "sure", stream) < self.sure else drawn


def small_recipe(name: str | None, *assignments: str, **rollout: Any) -> Recipe:
    """A recipe in small: steps of a few short trajectories, which its watchers look at often."""
    changes = {"prompts": 4, "group": 4, "max_tokens": 128, "watch_every": 16, "patience": 16, **rollout}
    recipe = load_recipe(name, {"rollout": changes}, list(assignments))
    tables = {
        key: {**SMALL_WINDOWS.get(key, {}), **table} if table is not False else False
        for key, table in recipe.mechanisms.items()
    }
    return recipe.model_copy(update={"mechanisms": tables})


@dataclass
class Steps:
    """What came of them, one entry a step."""

    events: list[list[Event]] = field(default_factory=list)
    batches: list[list[Group]] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)  # tokens, by the engines' own count
    given: list[list[tuple[float, str]]] = field(default_factory=list)  # when which group was handed on

    @property
    def accounts(self) -> list[Accounts]:
        return [step_accounts(events) for events in self.events]

    def all(self, kind: str) -> list[Event]:
        return [event for events in self.events for event in events if event["e"] == kind]

    @property
    def fates(self) -> Fates:
        fates = Fates()
        for events in self.events:
            for event in events:
                fates.hear(event)
        return fates

    @property
    def trained(self) -> list[tuple[int, Trajectory]]:
        """With the step that trained it."""
        return [
            (step, trajectory)
            for step, batch in enumerate(self.batches, 1)
            for group in batch
            for trajectory in group.trajectories
        ]


Update = Callable[[int, list[Group]], Awaitable[None]]


def mechanisms_of(recipe: Recipe, extra: Sequence[Mechanism] = ()) -> Mechanisms:
    """The recipe's own, and more that are registered nowhere."""
    mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
    for mechanism in extra:
        mechanisms.by_name[type(mechanism).__name__] = mechanism
        if isinstance(mechanism, Watch):
            mechanisms.watches.append(mechanism)
        if isinstance(mechanism, Place):
            mechanisms.places.append(mechanism)
    return mechanisms


async def take_steps(controller: Controller, steps: Sequence[int], update: Update) -> Steps:
    """`update(step, batch)` publishes weights of version `step` on every engine."""
    taken, backends, clock = Steps(), controller.stage.fleet.backends, controller.stage.clock
    for step in steps:
        events: list[Event] = []
        before = _sampled(backends)
        given: list[tuple[float, str]] = []
        give = lambda group, given=given: given.append((clock.now(), group.id))
        batch = await controller.roll_out(step, events.append, give=give)
        assert sorted(name for _, name in given) == sorted(group.id for group in batch), "what is handed on is trained"
        taken.given.append(given)
        taken.sampled.append(_sampled(backends) - before)
        await update(step, batch)
        events += ({"e": kind, "t": clock.now(), "step": step} for kind in ("update", "done"))
        taken.events.append(events)
        taken.batches.append(batch)
    return taken


def _sampled(backends: Sequence[Backend]) -> int:
    return sum(backend.load().sampled for backend in backends)


@contextmanager
def unless_no_group_teaches() -> Iterator[None]:
    """For recipes and laws that Hypothesis makes up: one that keeps only groups with a signal may find none in as often
    as it tries, and says so."""
    try:
        yield
    except ConfigError as error:
        assume("no group of this step can be trained" not in str(error))
        raise


def simulate_steps(
    recipe: Recipe,
    law: Law,
    steps: int = 20,
    extra: Sequence[Mechanism] = (),
    engines: int = 2,
    slots: int = 6,
    pool: int = 24,
    seed: int = 0,
    score_s: float = 0.0,
    make_backend: Callable[[Law, SimConfig], SimBackend] = SimBackend,
    environment: Environment | None = None,
    **engine: Any,
) -> Steps:
    """`steps` steps in virtual time, over `pool` prompts and `engines` engines of `slots` slots each; a score takes
    `score_s` seconds."""

    async def run() -> Steps:
        config = SimConfig(slots=slots, **engine)
        backends = [make_backend(law, config) for _ in range(engines)]

        async def score(trajectory: Trajectory) -> Score:
            await asyncio.sleep(score_s)
            return Score(reward_of(law, trajectory))

        async def update(step: int, batch: list[Group]) -> None:
            for backend in backends:
                await backend.load_weights(None, step)

        clock = backends[0].clock
        turns = environment and Turns(environment, SimVoice(), score, clock, config.kv_tokens, 512, seed)
        with_memory = History.open(None, "sim", "sim")
        mechanisms = mechanisms_of(recipe, extra)
        controller = Controller(
            list(backends), slots, sim_prompts(pool, law), score, recipe.rollout, mechanisms, with_memory, vocab=512,
            seed=seed, turns=turns,
        )  # fmt: skip
        try:
            return await take_steps(controller, range(1, steps + 1), update)
        finally:
            await controller.close()
            for backend in backends:
                await backend.close()
            with_memory.close()

    return run_virtual(run())


def assert_close(estimate: float, truth: float, standard_error: float) -> None:
    assert standard_error > 0
    assert abs(estimate - truth) <= 3 * standard_error, f"{estimate:.4g} for {truth:.4g}, se {standard_error:.2g}"


def standard_error(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
