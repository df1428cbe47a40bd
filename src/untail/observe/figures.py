"""The figures of a whole run, from its events.jsonl alone.

Invariant: the rows made here are the lines of metrics.jsonl, and a run's ratio is the ratio of its sums: every second
and every token counts the same, in whichever step it was. Time is that of training steps; what passes between two of
them (validation, checkpoints, other runs of a comparison) is in none.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from untail.observe import drafts
from untail.observe.accounts import run_accounts
from untail.observe.fates import Fates
from untail.observe.metrics import Row, step_metrics
from untail.types import Event


@dataclass
class Validation:
    """A score, and what the training up to it took."""

    step: int
    score: float
    ci95: tuple[float, float]
    n: int
    mean_len: float
    wall_s: float
    tokens: int


@dataclass
class RunRecord:
    rows: list[Row] = field(default_factory=list)  # one a step
    validations: list[Validation] = field(default_factory=list)
    fates: Fates = field(default_factory=Fates)


def read_run(path: Path) -> RunRecord:
    """`path` is an events.jsonl. A step that is not over is left out of the rows."""
    record, step, slots, engines, devices = RunRecord(), list[Event](), 0, 1, 1
    for event in read_events(path):
        record.fates.hear(event)
        match event["e"]:
            case "run":
                slots, engines = event["concurrency"], event.get("engines", 1)
                devices = event.get("devices") or engines
            case "validation":
                record.validations.append(_validation(event, record.rows))
            case "step":
                step = [event]
            case "done":
                record.rows.append(step_metrics([*step, event], slots, engines, devices))
            case _:
                step.append(event)
    return record


def run_figures(path: Path) -> dict[str, Any]:
    """`path` is the events.jsonl of a run with at least one whole step."""
    return record_figures(read_run(path))


def record_figures(record: RunRecord) -> dict[str, Any]:
    """Pre: at least one whole step."""
    return {
        **over_steps(record.rows),
        "false_kills": record.fates.false_kills(),
        "kept_vs_all": record.fates.kept_vs_all(),
        "validations": [vars(validation) for validation in record.validations],
    }


def over_steps(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows of metrics.jsonl in a few numbers. Pre: at least one row."""
    total = {name: sum(row[name] for row in rows) for name in SUMS}
    walls = sorted(row["wall_s"] for row in rows)
    last_quarter = rows[-math.ceil(len(rows) / 4) :]
    return {
        "steps": len(rows),
        **total,
        "ett": _ratio(total["effective_tokens"], total["wall_s"]),
        "etr": _ratio(total["rewarded_tokens"], total["tokens"]),
        "throughput": _ratio(total["tokens"] + total["prompt_tokens"], total["wall_s"]),
        "bad_generation": _ratio(total["bad_tokens"], total["tokens"]),
        "preemption": _ratio(total["recomputed"], total["computed"]),
        "slot_bubble": _mean(rows, "slot_bubble", "rollout_s"),
        "tail_share": _mean(rows, "tail_share", "rollout_s"),
        "tail_utilisation": _mean([row for row in rows if row.get("tail_utilisation") is not None], "tail_utilisation"),
        "device_bubble": _mean(rows, "device_bubble", "wall_s"),
        "makespan_p50": median(walls),
        "makespan_p95": walls[math.ceil(0.95 * len(walls)) - 1],
        "makespan_max": walls[-1],
        "mean_len": _mean(rows, "len_mean", "trajectories"),
        "entropy": _mean(rows, "entropy"),
        "zero_variance": _mean(rows, "zero_variance"),
        "pruning": _pruning(rows),
        "pass1": _mean(last_quarter, "pass1"),
        "turns": _mean(rows, "turns"),
        "staleness": _staleness(rows),
        "drafts": drafts.over_steps(row.get("drafts", {}) for row in rows),
        "kv_used": max(row["kv_used"] for row in rows),
        "peak_mem": max(row["peak_mem"] for row in rows),
        "phases": {name: sum(row["phases"][name] for row in rows) for name in rows[0]["phases"]},
        "accounts": run_accounts([row["accounts"] for row in rows]),
    }


def to_score(validations: Sequence[dict[str, Any]], target: float) -> tuple[float, int] | tuple[None, None]:
    """Seconds of training and tokens generated until a validation first reached `target`; None, None: none did."""
    reached = next((v for v in validations if v["score"] >= target), None)
    return (None, None) if reached is None else (reached["wall_s"], reached["tokens"])


SUMS = (
    *("wall_s", "rollout_s", "update_s", "tokens", "prompt_tokens", "trajectories", "effective_tokens"),
    *("rewarded_tokens", "bad_tokens", "computed", "recomputed", "preemptions", "forks", "tool_wait_s"),
)


def read_events(path: Path) -> Iterator[Event]:
    """Line by line: a long run's events are more than memory should hold. A line that a crash cut short is none."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _validation(event: Event, rows: list[Row]) -> Validation:
    wall, tokens = sum(row["wall_s"] for row in rows), sum(row["tokens"] for row in rows)
    low, high = event["ci95"]
    return Validation(event["step"], event["score"], (low, high), event["n"], event["mean_len"], wall, tokens)


def _pruning(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Per reason, how many it stopped of all that started, and in which of their segments."""
    started = sum(row["started"] for row in rows)
    found = {}
    for reason in sorted({reason for row in rows for reason in row["pruning"]}):
        steps = [row["pruning"][reason] for row in rows if reason in row["pruning"]]
        stopped, segments = sum(step["stopped"] for step in steps), Counter[str]()
        for step in steps:
            segments.update(step["by_segment"])
        by_segment = {index: segments[index] for index in sorted(segments, key=int)}
        found[reason] = {"stopped": stopped, "ratio": _ratio(stopped, started), "by_segment": by_segment}
    return found


def _staleness(rows: Sequence[Row]) -> dict[str, float | None]:
    """Per token that was learned from."""
    learned = [(row["staleness"], row["accounts"]["trained"] + row["accounts"]["stopped"]) for row in rows]
    tokens = sum(weight for _, weight in learned)
    age = sum(staleness["mean"] * weight for staleness, weight in learned if weight)
    return {"mean": age / tokens if tokens else None, "max": max(staleness["max"] for staleness, _ in learned)}


def _mean(rows: Sequence[Row], name: str, weight: str | None = None) -> float | None:
    """Over the steps in which it is defined; a step without weight (no seconds, on a clock that stood still) counts for
    nothing."""
    defined = [row for row in rows if row[name] is not None]
    weights = [row[weight] if weight else 1.0 for row in defined]
    return fmean((row[name] for row in defined), weights) if sum(weights) else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
