"""A whole run in a few numbers, from its metrics."""

from pathlib import Path
from statistics import fmean
from typing import Any

from untail.observe.events import read_lines
from untail.types import Progress


def summary(progress: Progress, folder: Path) -> dict[str, Any]:
    rows = read_lines(folder / "metrics.jsonl")
    before, after = progress.validations["0"], progress.validations[str(progress.step)]
    return {
        "steps": progress.step,
        "wall_s": progress.seconds,
        "tokens": progress.tokens,
        "score_before": before["score"],
        "score_after": after["score"],
        "ci95_before": before["ci95"],
        "ci95_after": after["ci95"],
        "ett": sum(row["effective_tokens"] for row in rows) / sum(row["wall_s"] for row in rows),
        "slot_bubble": fmean(row["slot_bubble"] for row in rows),
        "tail_share": fmean(row["tail_share"] for row in rows),
        "run_dir": str(folder),
    }
