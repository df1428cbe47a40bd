"""Recipes in virtual time: the real controller and the real mechanisms over simulated engines.

Invariant: every recipe of one comparison sees the same law, prompts, slots and seeds. A step is a rollout, an update
that takes `update_s`, and new weights on every engine; the first steps, in which pools fill and history is made, are
left out of the figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from untail.backends.laws import Law, make_law, reward_of, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import Recipe
from untail.history.store import History
from untail.observe.metrics import step_metrics
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.turns import Turns, build_environment
from untail.types import Event, Trajectory

ACCEPTANCE = 0.7  # of the drafts of a recipe that has any: RhymeRL publishes 65 to 79 %


@dataclass(frozen=True)
class Scene:
    """What is simulated."""

    devices: int
    law: str  # a law's name, or a trace
    steps: int = 20  # that are measured
    warmup: int = 6
    update_s: float = 0.0
    engine: SimConfig = field(default_factory=SimConfig)
    seed: int = 0


class SimVoice:
    """A simulated model says nothing, and takes any reply for a few tokens."""

    vocab = 2
    reply_tokens = 32

    def text(self, tokens: Sequence[int]) -> str:
        return ""

    def reply(self, turn: Sequence[int], text: str, role: str) -> list[int]:
        return [1] * self.reply_tokens


def simulate(name: str, recipe: Recipe, scene: Scene) -> dict[str, Any]:
    """One row: the steady state of one recipe."""
    rows = run_virtual(_run(recipe, scene, make_law(scene.law, scene.seed)))[scene.warmup :]
    trained = sum(row["trajectories"] for row in rows)
    seconds = sum(row["wall_s"] for row in rows)
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
        "preemption": sum(row["recomputed"] for row in rows) / max(1, sum(row["computed"] for row in rows)),
        "recomputed": sum(row["computed"] - row["tokens"] for row in rows) / len(rows),
        "trajectories": trained,
    }


def _over_time(rows: list[dict[str, Any]], key: str) -> float:
    """A share of the rollout seconds, over all of them."""
    return sum(row[key] * row["rollout_s"] for row in rows) / sum(row["rollout_s"] for row in rows)


async def _run(recipe: Recipe, scene: Scene, law: Law) -> list[dict[str, Any]]:
    changes: dict[str, Any] = {"kv_after_update": recipe.engine.kv_after_update}
    if recipe.draft.drafters and not scene.engine.acceptance:
        changes["acceptance"] = ACCEPTANCE
    engine = scene.engine.model_copy(update=changes)
    backends = [SimBackend(law, engine) for _ in range(scene.devices)]
    mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
    history = History.open(None, "sim", "sim")

    async def score(trajectory: Trajectory) -> Score:
        return Score(reward_of(law, trajectory))

    environment = build_environment(recipe, backends[0].capabilities, "sim")
    turns = None
    if environment is not None:
        turns = Turns(environment, SimVoice(), score, backends[0].clock, engine.kv_tokens, SimVoice.vocab, scene.seed)
    controller = Controller(
        list(backends),
        scene.engine.slots,
        sim_prompts(max(512, 8 * recipe.rollout.prompts), law),
        score,
        recipe.rollout,
        mechanisms,
        history,
        seed=scene.seed,
        turns=turns,
    )
    rows = []
    for step in range(1, scene.warmup + scene.steps + 1):
        events: list[Event] = []
        await controller.roll_out(step, events.append)
        clock = controller.stage.clock
        await clock.sleep(scene.update_s)
        events.append({"e": "update", "t": clock.now(), "step": step})
        for backend in backends:
            await backend.load_weights(None, step)
        events.append({"e": "done", "t": clock.now(), "step": step})
        rows.append(step_metrics(events, controller.stage.fleet.slots.total, scene.devices))
    await controller.close()
    for backend in backends:
        await backend.close()
    history.close()
    return rows
