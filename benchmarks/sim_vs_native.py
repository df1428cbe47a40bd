"""The simulator against the native engine on the same trace: do their rollouts take equally long?

The tiny model rolls out the quickstart's steps, with the real controller over the native engine. The rounds before tell
what a step takes, by how many responses ran in it (untail.flow.recorded); with that the simulator replays the lengths
of this round, response by response, under the same controller. The first round only warms up.

    OMP_NUM_THREADS=1 python benchmarks/sim_vs_native.py --rounds 8 | tail -1
"""

import argparse
import asyncio
import json
from functools import partial
from statistics import median

from untail.backends.base import Backend
from untail.backends.laws import ENTROPY, VOCAB, Draw, Law, sim_prompts
from untail.backends.native import NativeBackend
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import Recipe, load_recipe
from untail.engine.engine import Engine
from untail.engine.models.load import LoadedModel, load_model
from untail.flow.recorded import step_times
from untail.history.store import History
from untail.observe.step import StepEvents
from untail.resolve import resolved
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.tasks.prepare import prepare
from untail.types import Event, Group, Prompt, Trajectory, stream_key


class Replay(Law):
    """The lengths of a round that was rolled out, by the random streams that the simulator's controller deals."""

    def __init__(self, groups: list[Group], seed: int):
        self._lengths = {}
        serial = 0
        for group in sorted(groups, key=lambda group: group.id):
            for number, trajectory in enumerate(sorted(group.trajectories, key=lambda t: t.id)):
                self._lengths[stream_key(seed, f"g{serial:08}/{number}")] = trajectory.length
            serial += len(group.trajectories)

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        return Draw(self._lengths[stream], 1.0, ENTROPY)


async def score(trajectory: Trajectory) -> Score:
    return Score(float(trajectory.stream % 2))


def controller_of(recipe: Recipe, backend: Backend, prompts: list[Prompt], slots: int, **about: object) -> Controller:
    history = History.open(None, "bench", "bench")
    mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
    return Controller(
        [backend], slots, prompts, score, recipe.rollout, mechanisms, history, VOCAB, seed=recipe.seed, **about
    )  # type: ignore[arg-type]


async def rolled_out(controller: Controller, step: int) -> tuple[list[Group], StepEvents]:
    """One step, with nothing learned after it."""
    events: list[Event] = []
    groups = await controller.roll_out(step, events.append)
    now = controller.stage.clock.now()
    events += [{"e": "update", "t": now, "step": step}, {"e": "done", "t": now, "step": step}]
    return groups, StepEvents(events)


async def replayed(recipe: Recipe, groups: list[Group], tau: list[tuple[float, float]]) -> float:
    """Seconds of the same rollout in the simulator."""
    law = Replay(groups, recipe.seed)
    points = tuple((batch, seconds * 1000) for batch, seconds in tau)
    # What it takes to fill in a prompt is in the step times already.
    config = SimConfig(slots=recipe.engine.max_seqs, step_points_ms=points, prefill_tokens_per_s=1e12)
    backend = SimBackend(law, config)
    prompts = sim_prompts(max(512, 8 * recipe.rollout.prompts), law)
    controller = controller_of(recipe, backend, prompts, config.slots)
    _, step = await rolled_out(controller, 1)
    await controller.close()
    await backend.close()
    controller.stage.history.close()
    return step.rollout_s


async def compare(recipe: Recipe, model: LoadedModel, rounds: int) -> list[dict[str, float]]:
    decode = partial(model.tokenizer.decode, skip_special=False)
    backend = NativeBackend(Engine(model.decoder, recipe.engine, decode))
    stops = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
    prompts = prepare(recipe, model.tokenizer, model.decoder.shape.context).prompts
    vocab = model.decoder.shape.vocab
    controller = controller_of(recipe, backend, prompts, recipe.engine.max_seqs, stop_ids=stops, vocab=vocab)
    await rolled_out(controller, 1)
    known, rows = [(await rolled_out(controller, 2))[1]], []
    for step in range(3, rounds + 3):
        groups, events = await rolled_out(controller, step)
        # Another loop cannot run within this one; a thread has its own.
        tau = step_times(known)
        simulated = await asyncio.to_thread(lambda: run_virtual(replayed(recipe, groups, tau)))  # noqa: B023
        row = {"native_s": events.rollout_s, "sim_s": simulated, "ratio": simulated / events.rollout_s}
        rows.append({key: round(value, 4) for key, value in row.items()})
        known.append(events)
    await controller.close()
    await backend.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Rollout seconds of the simulator and of the native engine.")
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    arguments = parser.parse_args()
    recipe = resolved(load_recipe(arguments.recipe, {}, arguments.set))
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    rows = asyncio.run(compare(recipe, model, arguments.rounds))
    setting = {"recipe": arguments.recipe, "trajectories": recipe.rollout.prompts * recipe.rollout.group}
    print(json.dumps({**setting, "rounds": rows, "ratio": median(row["ratio"] for row in rows)}))


if __name__ == "__main__":
    main()
