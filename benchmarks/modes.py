"""The quickstart's step in three modes on two devices, one of them in portions too, against what is predicted, and the
planner's choice.

    python benchmarks/modes.py OUT.json [STEPS]

Steps of one mode are the profile from which each mode's step is predicted, and all modes make the same ones: responses
grow shorter from step to step. They take their steps in turn, so that what else happens on the machine happens to all.
`error` is prediction / measurement - 1, `chosen_ratio` what the planner's mode takes against the fastest. A device is a
core: driver and scorers need their own share of them.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from untail.config import load_recipe
from untail.flow.auto import work_of
from untail.flow.cluster import connect
from untail.flow.plan import Plan
from untail.flow.planner import make_plan
from untail.flow.recorded import profile_of_run
from untail.resolve import resolved

PORTION = 8  # groups, of 32
ROWS = {
    **{mode: {"mode": mode} for mode in ("collocated", "disaggregated", "hybrid")},
    "portions": {"mode": "disaggregated", "portion": PORTION},
}
DEVICES = 2
FEW = ("--set", "validation.prompts=8")


def main(out: Path, steps: int) -> None:
    chosen, predicted = predictions(steps)
    measured = measure(steps)
    fastest = min(measured, key=lambda mode: measured[mode]["step_s"])
    rows = {
        mode: {**found, "predicted_s": predicted[mode], "error": predicted[mode] / found["step_s"] - 1}
        for mode, found in measured.items()
    }
    ratio = measured[chosen]["step_s"] / measured[fastest]["step_s"]
    result = {"fastest": fastest, "chosen": chosen, "chosen_ratio": ratio, "modes": rows}
    out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))


def predictions(steps: int) -> tuple[str, dict[str, float]]:
    """The planner's row, and each row's seconds. With one learner, hybrid has engines where collocated has."""
    with tempfile.TemporaryDirectory() as folder:
        profile, run = Path(folder) / "profile.json", Path(folder) / "run"
        untail("train", "grpo", *FEW, "--steps", str(steps), "--out", str(run), *assignments("collocated"))
        profile_of_run(run).save(profile)
        recipe = resolved(load_recipe("grpo", {}, [*assignments("auto")[1::2], f"flow.profile={profile}"]))
        with connect("local", devices=DEVICES) as cluster:
            work = work_of(recipe, cluster, [])
    plan = make_plan(work)
    whole, cut = (by_mode(make_plan(replace(work, portions=[size]))) for size in (work.batch, PORTION))
    in_portions = plan.mode == "disaggregated" and plan.granularity < work.batch
    chosen = "portions" if in_portions else plan.mode
    return chosen, {"hybrid": whole["collocated"], **whole, "portions": cut["disaggregated"]}


def by_mode(plan: Plan) -> dict[str, float]:
    found = {other.mode: other.seconds for other in plan.alternatives if other.seconds is not None}
    return {**found, plan.mode: plan.predicted_step_s}


def assignments(mode: str) -> list[str]:
    return ["--set", f"flow.mode={mode}", "--set", f"flow.devices={DEVICES}"]


def untail(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "untail.cli.main", *arguments], check=True)


def measure(steps: int) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        recipes = [Path(folder) / f"{name}.toml" for name in ROWS]
        for path in recipes:
            settings = {**ROWS[path.stem], "devices": DEVICES}
            path.write_text("[flow]\n" + "".join(f"{field} = {json.dumps(v)}\n" for field, v in settings.items()))
        untail("compare", *map(str, recipes), "--steps", str(steps), *FEW, "--out", f"{folder}/runs")
        metrics = {path.stem: next(Path(folder).glob(f"runs/*-{path.stem}-seed0/metrics.jsonl")) for path in recipes}
        return {name: figures(path) for name, path in metrics.items()}


def figures(metrics: Path) -> dict[str, Any]:
    """Means over the steps, without the first."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()][1:]
    mean = lambda name: fmean(row[name] for row in rows)
    seconds = {"step_s": mean("wall_s"), "rollout_s": mean("rollout_s"), "update_s": mean("update_s")}
    return {**seconds, "early_s": fmean(row["learn"].get("early_s", 0.0) for row in rows), "steps": len(rows)}


if __name__ == "__main__":
    _, path, *rest = sys.argv
    main(Path(path), int(rest[0]) if rest else 10)
