"""The quickstart's step in three modes on two devices, against what is predicted, and the planner's choice.

    python benchmarks/modes.py OUT.json [STEPS] [SCHEDULE]

One device is measured and each mode's step predicted from that; then each mode makes a step in turn, so that what else
happens on the machine happens to all. `error` is prediction / measurement - 1, `chosen_ratio` what the planner's mode
takes against the fastest. A device is a core: driver and scorers need their own share of the machine.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from untail.config import Recipe, load_recipe
from untail.engine.models.load import load_model
from untail.flow.auto import Auto
from untail.flow.cluster import connect
from untail.resolve import resolved
from untail.tasks.prepare import prepare

MODES = {"sync": ("collocated", "disaggregated", "hybrid"), "one-off": ("disaggregated", "hybrid")}
DEVICES = 2


def main(out: Path, steps: int, schedule: str) -> None:
    chosen, predicted = predictions(schedule)
    measured = measure(MODES[schedule], steps, schedule)
    fastest = min(measured, key=lambda mode: measured[mode]["step_s"])
    rows = {
        mode: {**found, "predicted_s": predicted.get(mode), "error": error(predicted.get(mode), found["step_s"])}
        for mode, found in measured.items()
    }
    ratio = measured[chosen]["step_s"] / measured[fastest]["step_s"]
    result = {"schedule": schedule, "fastest": fastest, "chosen": chosen, "chosen_ratio": ratio, "modes": rows}
    out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))


def error(predicted: float | None, measured: float) -> float | None:
    return None if predicted is None else predicted / measured - 1


def recipe_of(mode: str, schedule: str) -> Recipe:
    flow = [f"flow.mode={mode}", f"flow.devices={DEVICES}", f"flow.schedule={schedule}"]
    return resolved(load_recipe("grpo", {}, flow))


def predictions(schedule: str) -> tuple[str, dict[str, float]]:
    """The planner's mode, and each mode's seconds. With one learner, hybrid is in turn on the learner's device."""
    recipe = recipe_of("auto", schedule)
    model = load_model(recipe.model)
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    with connect("local", devices=DEVICES) as cluster:
        plan = Auto.of(recipe, cluster, data.prompts).plan
    found = {other.mode: other.seconds for other in plan.alternatives if other.seconds is not None}
    found[plan.mode] = plan.predicted_step_s
    return plan.mode, {"hybrid": found["collocated"], **found} if schedule == "sync" else found


def measure(modes: tuple[str, ...], steps: int, schedule: str) -> dict[str, dict[str, Any]]:
    """Medians over the steps, without the first."""
    with tempfile.TemporaryDirectory() as folder:
        recipes = [Path(folder) / f"{mode}.toml" for mode in modes]
        for path in recipes:
            path.write_text(f'[flow]\nmode = "{path.stem}"\ndevices = {DEVICES}\nschedule = "{schedule}"\n')
        command = [sys.executable, "-m", "untail.cli.main", "compare", *map(str, recipes), "--steps", str(steps)]
        subprocess.run([*command, "--set", "validation.prompts=8", "--out", f"{folder}/runs"], check=True)
        return {
            path.stem: figures(next(Path(folder).glob(f"runs/*-{path.stem}-seed0/metrics.jsonl"))) for path in recipes
        }


def figures(metrics: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()][1:]
    mean = lambda name: median(row[name] for row in rows)
    return {"step_s": mean("wall_s"), "rollout_s": mean("rollout_s"), "update_s": mean("update_s"), "steps": len(rows)}


if __name__ == "__main__":
    _, path, *rest = sys.argv
    main(Path(path), int(rest[0]) if rest else 10, rest[1] if len(rest) > 1 else "sync")
