"""The rows of a comparison, from the figures of its runs.

Invariant: a row of several seeds holds the means over them, and null where one of them has none; the seeds' own rows
are in it. The score to be reached is one for all: the first row's last score, less half the width of its 95 % interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from untail.observe.figures import to_score

Row = dict[str, Any]
MEANS = (
    *("wall_s", "rollout_s", "tokens", "trajectories", "ett", "etr", "throughput", "slot_bubble", "tail_share"),
    *(
        "tail_utilisation",
        "device_bubble",
        "makespan_p50",
        "makespan_p95",
        "makespan_max",
        "bad_generation",
        "preemption",
    ),
    *("mean_len", "entropy", "pass1", "zero_variance", "forks", "turns", "tool_wait_s", "staleness"),
    *("peak_mem", "phases"),
)
SCORES = ("score_before", "time_to_score_s", "tokens_to_score")
# Of one run: a mean of these would mean little.
OWN = ("accounts", "pruning", "false_kills", "kept_vs_all", "validations")


@dataclass(frozen=True, slots=True)
class SeedRun:
    seed: int
    folder: Path
    figures: dict[str, Any]  # of observe.figures.run_figures

    @property
    def last(self) -> dict[str, Any]:
        return self.figures["validations"][-1]


@dataclass(slots=True)
class Result:
    """What came of one variant: a run per seed, or why there is none."""

    name: str
    runs: list[SeedRun] = field(default_factory=list)
    error: str | None = None


def make_rows(results: Sequence[Result]) -> tuple[list[Row], float | None]:
    """The rows, and the score that they are timed by: null if the first is out."""
    first = results[0]
    if first.error is None:
        score, (low, high) = pooled([run.last for run in first.runs])
        target = score - (high - low) / 2
    else:
        target = None
    rows = [_row(result, target) for result in results]
    for row in rows:
        walls = rows[0].get("wall_s"), row.get("wall_s")
        row["speedup"] = walls[0] / walls[1] if walls[0] and walls[1] else None
    return rows, target


def pooled(validations: Sequence[dict[str, Any]]) -> tuple[float, tuple[float, float]]:
    """Score and 95 % interval over the answers of several validations, each as many as it has."""
    n = sum(validation["n"] for validation in validations)
    weigh = lambda values: math.fsum(v * validation["n"] for v, validation in zip(values, validations, strict=True)) / n
    centre = weigh([fmean(validation["ci95"]) for validation in validations])
    halves = [(validation["ci95"][1] - validation["ci95"][0]) / 2 * validation["n"] / n for validation in validations]
    half = math.hypot(*halves)  # errors of independent means
    return weigh([validation["score"] for validation in validations]), (centre - half, centre + half)


def _row(result: Result, target: float | None) -> Row:
    if result.error is not None:
        return {"recipe": result.name, "error": result.error}
    seeds = [_seed_row(run, target) for run in result.runs]
    if len(seeds) == 1:
        return {"recipe": result.name, **seeds[0]}
    score, interval = pooled([run.last for run in result.runs])
    means = {name: _mean([row[name] for row in seeds]) for name in (*MEANS, *SCORES)}
    return {"recipe": result.name, **means, "score_after": score, "ci95_after": list(interval), "seeds": seeds}


def _seed_row(run: SeedRun, target: float | None) -> Row:
    figures = run.figures
    seconds, tokens = (None, None) if target is None else to_score(figures["validations"], target)
    return {
        "seed": run.seed,
        "run_dir": str(run.folder),
        **{name: figures[name] for name in MEANS},
        "score_before": figures["validations"][0]["score"],
        "score_after": run.last["score"],
        "ci95_after": list(run.last["ci95"]),
        "time_to_score_s": seconds,
        "tokens_to_score": tokens,
        **{name: figures[name] for name in OWN},
    }


def _mean(values: list[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], dict):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return fmean(values)
