"""Recipes in virtual time: the real controller and the real mechanisms over simulated engines and a simulated learner.

Invariant: every recipe of one comparison sees the same law, prompts, slots and seeds. A step is a rollout, an update,
and new weights on every engine; the scene says how far the next may begin before that. The first steps, in which pools
fill and history is made, are left out of the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from untail.backends.laws import VOCAB, Law, make_law, reward_of, sim_prompts
from untail.backends.sim import SimBackend
from untail.backends.virtual_loop import run_virtual
from untail.config import Recipe
from untail.history.store import History
from untail.observe.metrics import step_metrics
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.turns import Turns, build_environment
from untail.simulate.learner import SimLearner
from untail.simulate.scene import Scene
from untail.types import Event, Trajectory

ACCEPTANCE = 0.7  # of the drafts of a recipe that has any: RhymeRL publishes 65 to 79 %


class SimVoice:
    """A simulated model says nothing, and takes any reply for a few tokens."""

    reply_tokens = 32

    def text(self, tokens: Sequence[int]) -> str:
        return ""

    def reply(self, turn: Sequence[int], text: str, role: str) -> list[int]:
        return [1] * self.reply_tokens


@dataclass(frozen=True)
class Played:
    """A simulation that is over."""

    rows: list[dict[str, Any]]  # one a step
    done: list[float]  # when each step's weights were published
    learner_s: float  # that the learner was busy, all steps together


def simulate(name: str, recipe: Recipe, scene: Scene) -> dict[str, Any]:
    """One row: the steady state of one recipe."""
    played = run_virtual(play(recipe, scene, make_law(scene.law, scene.seed)))
    rows = played.rows[scene.warmup :]
    trained = sum(row["trajectories"] for row in rows)
    seconds = played.done[-1] - (played.done[scene.warmup - 1] if scene.warmup else 0.0)
    batch = recipe.rollout.prompts * recipe.rollout.group
    return {
        "recipe": name,
        "step_s": seconds / trained * batch,  # per batch of trained trajectories: recipes differ in what a step trains
        "slot_bubble": _over_time(rows, "slot_bubble"),
        "tail_share": _over_time(rows, "tail_share"),
        "mean_len": fmean(row["len_mean"] for row in rows),
        "first_segment": fmean(row["first_segment"] for row in rows if row["first_segment"] is not None),
        "tok_s": sum(row["tokens"] for row in rows) / seconds,
        "bad_generation": fmean(row["bad_generation"] for row in rows),
        "staleness": fmean(row["staleness"]["mean"] for row in rows),
        "staleness_max": max(row["staleness"]["max"] for row in rows),
        "learner_busy": played.learner_s / played.done[-1] if played.done[-1] else 0.0,
        "preemption": sum(row["recomputed"] for row in rows) / max(1, sum(row["computed"] for row in rows)),
        "recomputed": sum(row["computed"] - row["tokens"] for row in rows) / len(rows),
        "trajectories": trained,
    }


def _over_time(rows: list[dict[str, Any]], key: str) -> float:
    """A share of the rollout seconds, over all of them."""
    return sum(row[key] * row["rollout_s"] for row in rows) / sum(row["rollout_s"] for row in rows)


async def play(recipe: Recipe, scene: Scene, law: Law) -> Played:
    rollout = recipe.rollout.model_copy(update={"max_staleness": scene.bound(recipe.rollout)})
    recipe = recipe.model_copy(update={"rollout": rollout})
    backends = _engines(recipe, scene, law)
    # Nobody drafts from what simulated responses say: their token ids need not be kept.
    history = History.open(None, "sim", "sim", cap_tokens=0)
    controller = _controller(recipe, scene, law, backends, history)
    learner = SimLearner(scene, backends, in_flight=scene.schedule == "async")
    last = scene.warmup + scene.steps
    events: list[list[Event]] = [[] for _ in range(last)]
    for step in range(1, last + 1):
        await learner.until(step - 1 - scene.lead(rollout))
        if scene.schedule != "async":
            await learner.publish()
        emit = events[step - 1].append
        groups = await controller.roll_out(step, emit, learner.published)
        learner.begin(step, groups, emit)
    await learner.until(last)
    rows = [step_metrics(of_step, controller.stage.fleet.slots.total, scene.engines) for of_step in events]
    await controller.close()
    for backend in backends:
        await backend.close()
    history.close()
    return Played(rows, [of_step[-1]["t"] for of_step in events], learner.busy_s)


def _engines(recipe: Recipe, scene: Scene, law: Law) -> list[SimBackend]:
    changes: dict[str, Any] = {"kv_after_update": recipe.engine.kv_after_update}
    if recipe.draft.drafters and not scene.engine.acceptance:
        changes["acceptance"] = ACCEPTANCE
    config = scene.engine.model_copy(update=changes)
    return [SimBackend(law, config) for _ in range(scene.engines)]


def _controller(recipe: Recipe, scene: Scene, law: Law, backends: list[SimBackend], history: History) -> Controller:
    async def score(trajectory: Trajectory) -> Score:
        return Score(reward_of(law, trajectory))

    environment = build_environment(recipe, backends[0].capabilities, "sim")
    turns = None
    if environment is not None:
        kv_tokens = scene.engine.kv_tokens
        turns = Turns(environment, SimVoice(), score, backends[0].clock, kv_tokens, VOCAB, scene.seed)
    return Controller(
        list(backends),
        scene.engine.slots,
        sim_prompts(max(512, 8 * recipe.rollout.prompts), law),
        score,
        recipe.rollout,
        Mechanisms(recipe.mechanisms, recipe.rollout),
        history,
        VOCAB,
        seed=scene.seed,
        turns=turns,
    )
