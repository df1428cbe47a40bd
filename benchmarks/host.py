"""How many tokens a second the host can deal with, beside a device that takes no time: the ceiling of any faster one.

    python benchmarks/host.py OUT.json [STEPS]

Rollouts of 64 x 8 responses a step in 512 slots, 230 tokens long on average, as SmolLM2's with a budget of 1024.
Scheduler, run-ahead, chunks, controller, mechanisms, scorers and events are real. Only the device is not: a launch
draws its tokens from a generator at once, and what fills in prompts draws one each.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from untail.cli.main import main as untail
from untail.engine import run_ahead, runner
from untail.engine.blocks import blocks_for
from untail.engine.decode_state import DecodeState
from untail.engine.graphs import Drawn
from untail.engine.sampler import Sampled

RECIPES = ("grpo", "untail")
MEAN_LENGTH = 230
TOKENS = (3, 60)  # ids that are drawn; none of them is a stop
FIGURES = (-1.0, -1.0, 1.0, 0.1)
SETTINGS = {
    "rollout.prompts": 64,
    "rollout.group": 8,
    "rollout.max_tokens": 900,
    "engine.max_seqs": 512,
    "engine.max_batch_tokens": 16384,
    "validation.prompts": 8,
}
random = np.random.default_rng(0)


class NoDevice:
    """Stands for engine/graphs.DecodeGraphs."""

    def __init__(self, rows: int, blocks: int):
        self.state = DecodeState.make(rows, blocks, run_ahead.STEPS, "cpu")

    def capture(self, rows: int) -> None: ...

    def launch(self, rows: int, steps: int) -> "NoDevice.Launch":
        left, live = self.state.left.numpy()[:rows], self.state.live.numpy()[:rows]
        stops = self.state.stops.numpy()[:rows, 0]
        tokens = np.full((steps, rows), -1)
        for drawn in tokens:
            alive, ends = live > 0, random.random(rows) < 1 / MEAN_LENGTH
            drawn[alive] = np.where(ends, stops, random.integers(*TOKENS, rows))[alive]
            left -= alive
            live[:] = alive & ~ends & (left > 0)
        return self.Launch(tokens)

    class Launch:
        def __init__(self, tokens: np.ndarray):
            self.tokens = tokens

        def wait(self) -> Drawn:
            return Drawn(self.tokens, np.tile(np.float32(FIGURES), (*self.tokens.shape, 1)), seconds=0.02)


class Runner(runner.Runner):
    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.kernels: Any = object()  # so that the engine runs ahead

    def warm_up(self, drafted_for: int = 0) -> None: ...

    def run(self, plan: Any) -> runner.Result:
        catching_up = [work.sequence for work in plan.work if work.catches_up]
        drawn = [runner.Drawn(sequence, [], range(row, row + 1)) for row, sequence in enumerate(catching_up)]
        tokens = random.integers(*TOKENS, len(drawn)).tolist()
        sampled = Sampled(tokens, [FIGURES] * len(drawn), [True] * len(drawn))
        return runner.Result(drawn, sampled, self.decoder.embed[:0])


class RunAhead(run_ahead.RunAhead):
    def _ready(self) -> Any:
        if self._graphs is None:
            self._graphs: Any = NoDevice(self.buckets[-1], blocks_for(self.context))
        return self._graphs


def main(out: Path, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            here = [sys.executable, __file__, recipe, str(steps), f"{folder}/{recipe}"]
            subprocess.run(here, check=True, stdout=subprocess.DEVNULL)
        metrics = {name: (Path(folder) / name / "metrics.jsonl").read_text().splitlines()[1:] for name in RECIPES}
    rows = {name: [json.loads(line) for line in lines] for name, lines in metrics.items()}
    speeds = {name: median(row["tokens"] / row["rollout_s"] for row in own) for name, own in rows.items()}
    out.write_text(json.dumps({"steps": steps, "tokens_per_s": speeds}) + "\n")
    print(speeds)


def train(recipe: str, steps: str, folder: str) -> None:
    """In a process of its own: what stands for the device stays there."""
    from untail.engine import engine

    engine.Runner, engine.RunAhead = Runner, RunAhead  # type: ignore[misc]
    changes = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    sys.argv = ["untail", "train", recipe, "--steps", steps, "--out", folder, *changes]
    untail()


if __name__ == "__main__":
    if sys.argv[1] in RECIPES:
        train(*sys.argv[1:])
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
