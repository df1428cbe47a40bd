"""A run's events.jsonl as a report needs it: its figures, its steps' phases, its lengths, and pictures of its steps.

Invariant: a file that cannot be used is refused with a sentence that names it; a run that is not over is shown as far
as it has come, with a note. Events are read line by line, and a report draws no more than about `MOST` trajectories.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from untail.errors import UserError
from untail.observe.figures import read_events, read_run, record_figures
from untail.observe.metrics import Row
from untail.observe.report.runs import Found
from untail.observe.report.timeline import Lives, Picture

SCHEMAS = (2, 3)  # of events.jsonl; 3 added forks and turns
MOST = 60_000
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # what events that are not ours lead to
Pictures = dict[int, dict[int, Picture]]
"""By step, and by the number of the run."""


@dataclass(slots=True)
class Run:
    label: str
    events: Path
    concurrency: int
    engines: int
    rows: list[Row]  # one a step, as in metrics.jsonl
    figures: dict[str, Any]
    lengths: Counter[int]  # of the responses that ended by themselves: how many of each


def read(found: Sequence[Found]) -> tuple[list[Run], list[str]]:
    """The runs, and what a reader should know about them."""
    runs, notes, reasons = [], [], []
    for one in found:
        try:
            run, own = _read(one)
        except UserError as error:
            if one.is_named:
                raise
            reasons.append(str(error))
            notes.append(f"{one.label} is left out: {error}.")
        else:
            runs.append(run)
            notes += own
    if not runs:
        raise UserError(reasons[0])
    return runs, notes


def _read(found: Found) -> tuple[Run, list[str]]:
    first = _first_event(found.events)
    try:
        record = read_run(found.events)
    except MALFORMED as error:
        raise _damage(found.events, error) from None
    if not record.rows:
        raise UserError(f"{found.events} has no whole step yet; wait for the first, then ask again")
    slots, engines = first["concurrency"], first.get("engines", 1)
    lengths = Counter(record.fates.lengths.values())
    run = Run(found.label, found.events, slots, engines, record.rows, record_figures(record), lengths)
    return run, _notes(run, first)


def _first_event(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not line.endswith(b"\n"):
        raise UserError(f"{path} holds no event; the run has only just begun, or never did")
    first = _event(line)
    if first is None:
        raise UserError(f"{path} line 1 is not an event; the file was changed: restore it")
    _refuse_other_schema(first, path)
    return first


def _event(line: bytes) -> dict[str, Any] | None:
    """None if it is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("e"), str) else None


def _damage(path: Path, error: Exception) -> UserError:
    """The first line that is not an event, or what the events lack."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and _event(line) is None:
                return UserError(f"{path} line {number} is not an event; the file was changed: restore it")
    what = f"{type(error).__name__}: {error}"
    return UserError(f"{path} does not hold together ({what}); it was changed: restore it")


def _refuse_other_schema(first: dict[str, Any], path: Path) -> None:
    known = " or ".join(map(str, SCHEMAS))
    if first["e"] != "run" or "schema" not in first or not isinstance(first.get("concurrency"), int):
        raise UserError(
            f"{path} does not begin with a run event of schema {known}; it is not a file of untail's events"
        )
    if first["schema"] not in SCHEMAS:
        raise UserError(
            f"{path} has events of schema {first['schema']}, but this untail reads {known}; "
            "report it with the untail that wrote it"
        )


def _notes(run: Run, first: dict[str, Any]) -> list[str]:
    notes, done = [], len(run.rows)
    if not _is_whole(run.events):
        notes.append(f"{run.label}: the last line of its events was cut short, as by a crash, and is left out.")
    wanted = (first.get("recipe") or {}).get("steps")
    if isinstance(wanted, int) and done < wanted:
        notes.append(
            f"{run.label}: {done:,} of {wanted:,} steps so far. It is still going, or was stopped; a step under way is "
            "left out."
        )
    return notes


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def draw(runs: Sequence[Run]) -> Pictures:
    """Of the steps worth a picture, each run's."""
    chosen = set(choose_steps(runs))
    pictures: Pictures = {step: {} for step in sorted(chosen)}
    for number, run in enumerate(runs):
        try:
            for picture in _pictures(run.events):
                if picture.step in chosen:
                    pictures[picture.step][number] = picture
        except MALFORMED as error:
            raise _damage(run.events, error) from None
    return pictures


def _pictures(path: Path) -> Iterator[Picture]:
    lives = Lives()
    for event in read_events(path):
        picture = lives.hear(event)
        if picture is not None:
            yield picture


def choose_steps(runs: Sequence[Run]) -> list[int]:
    """All, if they are few enough; else half of them evenly spaced, half those with the longest tails."""
    tails: dict[int, float] = {}
    ended = 0
    for run in runs:
        for row in run.rows:
            tails[row["step"]] = max(tails.get(row["step"], 0.0), tail_s(row))
            ended += sum(row["ends"].values())
    steps = sorted(tails)
    room = max(4, MOST * len(steps) // max(1, ended))
    if len(steps) <= room:
        return steps
    spaced = {steps[i * (len(steps) - 1) // (room // 2 - 1)] for i in range(room // 2)}
    longest = sorted(set(steps) - spaced, key=lambda step: -tails[step])
    return sorted(spaced | set(longest[: room - len(spaced)]))


def tail_s(row: Row) -> float:
    """Seconds of the rollout after nine tenths of what it trains had finished."""
    return row["tail_share"] * row["rollout_s"]
