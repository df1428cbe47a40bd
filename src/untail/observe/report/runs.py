"""Which runs a report is about.

Invariant: every run has a label of its own, as short as can be.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from untail.errors import UserError

EVENTS = "events.jsonl"


@dataclass(frozen=True, slots=True)
class Found:
    label: str
    events: Path
    is_named: bool  # by the user, who wants to see it and no other; not just found in a comparison's folder


def find_runs(given: Sequence[Path]) -> list[Found]:
    """`given`: folders of runs, and of comparisons, which stand for all runs in them."""
    found: dict[Path, bool] = {}
    for folder in given:
        inside = _inside(folder)
        for run in inside or [folder]:
            found.setdefault(run.resolve(), not inside)
    labels = _labels(list(found))
    return [Found(labels[run], run / EVENTS, named) for run, named in found.items()]


def _inside(folder: Path) -> list[Path]:
    """The runs of a comparison; none if it is a run itself."""
    if not folder.exists():
        raise UserError(f"RUN {folder}: there is no such folder; give a run's folder, or a comparison's")
    if not folder.is_dir():
        raise UserError(f"RUN {folder} is a file; give the run's folder, the one that holds {EVENTS}")
    if (folder / EVENTS).exists():
        return []
    inside = sorted((path.parent for path in folder.glob(f"*/{EVENTS}")), key=_in_order)
    if not inside:
        raise UserError(f"RUN {folder} holds no run (no {EVENTS}, nor folders with one); give the folder of a run")
    return inside


def _in_order(folder: Path) -> tuple[int, str]:
    """As they were named to `compare`, which numbers its folders."""
    number = re.match(r"\d+", folder.name)
    return (int(number[0]) if number else 0, folder.name)


def _labels(folders: list[Path]) -> dict[Path, str]:
    """A folder's name without what is the same for all: a comparison's number in front, and its seed if it is one."""
    ways = (
        lambda folder: re.sub(r"^\d+-(.+?)(-seed\d+)?$", r"\1", folder.name),
        lambda folder: re.sub(r"^\d+-(.+-seed\d+)$", r"\1", folder.name),
        lambda folder: folder.name,
        lambda folder: f"{folder.parent.name}/{folder.name}",
    )
    for way in ways:
        labels = {folder: way(folder) for folder in folders}
        if len(set(labels.values())) == len(folders):
            return labels
    return {folder: str(folder) for folder in folders}
