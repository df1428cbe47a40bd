"""A whole run in a few numbers, from its metrics."""

from pathlib import Path
from typing import Any

from untail.observe.events import read_lines
from untail.observe.figures import over_steps
from untail.types import Progress

FIGURES = ("ett", "etr", "slot_bubble", "tail_share", "device_bubble", "bad_generation", "makespan_p50", "makespan_p95")


def summary(progress: Progress, folder: Path) -> dict[str, Any]:
    """`wall_s` is the whole run's, validation and all; the figures are those of its training steps."""
    figures = over_steps(read_lines(folder / "metrics.jsonl"))
    before, after = progress.validations["0"], progress.validations[str(progress.step)]
    return {
        "steps": progress.step,
        "wall_s": progress.seconds,
        "tokens": progress.tokens,
        "score_before": before["score"],
        "score_after": after["score"],
        "ci95_before": before["ci95"],
        "ci95_after": after["ci95"],
        **{name: figures[name] for name in FIGURES},
        "run_dir": str(folder),
    }
