"""A profile from what a finished run has recorded.

Invariant: nothing is assumed that the run did not measure. Its memory is that of all roles together, so that a profile
made here has none, and plans made with it refuse nothing for lack of memory.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from untail.errors import DataError
from untail.flow.profile import Measured, Profile, RoleProfile, RolloutProfile
from untail.observe.figures import read_events
from untail.observe.metrics import step_metrics
from untail.observe.step import LEAVES_ITS_SLOT, TAKES_A_SLOT, StepEvents, covered
from untail.types import Event

MOST_LENGTHS = 20_000


def profile_of_run(folder: Path) -> Profile:
    path = folder / "events.jsonl"
    if not path.is_file():
        raise DataError(f"{folder} is no run: it has no events.jsonl; give the folder of a finished run")
    run, steps = _read(path)
    if not steps:
        raise DataError(f"the run {folder} has no whole step; let it finish one")
    steps = steps[1:] or steps  # whatever is done for the first time is done in the first
    engines = run.get("engines", 1)
    devices = run.get("devices", engines)
    rows = [step_metrics(step.events, run["concurrency"], engines, devices) for step in steps]
    lengths = [end["tokens"] for step in steps for end in step.all("end") if end["end"] in ("stop", "length")]
    if not lengths:
        raise DataError(f"no response of the run {folder} came to its own end; there are no lengths to plan with")
    roles: dict[Any, RoleProfile] = {"update": _role(rows, "update_s"), "logprob": _role(rows, "logprob_s")}
    if scored := [_scoring(step) for step in steps if step.all("score")]:
        roles["reward"] = RoleProfile(points=scored)
    return Profile(
        made_on=f"the run {folder}",
        model=run["recipe"]["model"],
        sync_s=median(row["phases"]["sync_s"] for row in rows),
        rollout=RolloutProfile(tau=step_times(steps), lengths=lengths[-MOST_LENGTHS:]),
        roles=roles,
    )


def _read(path: Path) -> tuple[Event, list[StepEvents]]:
    run: Event = {}
    steps: list[StepEvents] = []
    events: list[Event] = []
    for event in read_events(path):
        match event["e"]:
            case "run":
                run = event
            case "step":
                events = [event]
            case "done":
                steps.append(StepEvents([*events, event]))
            case _:
                events.append(event)
    if not run:
        raise DataError(f"{path} does not begin with the run's own line; give the folder of a run of this version")
    return run, steps


def _role(rows: list[dict[str, Any]], phase: str) -> RoleProfile:
    """Steps that trained the same number of responses are one point."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        seconds[max(1, row["trajectories"])].append(row["phases"][phase])
    points = [Measured(devices=1, responses=n, seconds=median(taken)) for n, taken in sorted(seconds.items())]
    return RoleProfile(points=points)


def _scoring(step: StepEvents) -> Measured:
    return Measured(devices=1, responses=len(step.all("score")), seconds=covered(step.scoring_spans()))


def step_times(steps: list[StepEvents]) -> list[tuple[float, float]]:
    """Seconds of a decode step, by how many responses ran in it. A response that got k tokens in t seconds was in k
    steps of t / k seconds; such observations are gathered by powers of two of how many ran with it on average."""
    buckets: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    for step in steps:
        spans = list(_spans(step))
        if not spans:
            continue
        times = np.array([time for begin, end, _ in spans for time in (begin, end)])
        changes = np.array([1, -1] * len(spans))
        order = np.argsort(times, kind="stable")
        times, running = times[order], np.cumsum(changes[order])
        summed = np.concatenate(([0.0], np.cumsum(running[:-1] * np.diff(times))))
        for begin, end, tokens in spans:
            together = float(np.interp(end, times, summed) - np.interp(begin, times, summed)) / (end - begin)
            buckets[int(together).bit_length()].append((together, end - begin, tokens))
    if not buckets:
        raise DataError("the run has no response of which begin and end are known; its step times cannot be told")
    return sorted(_mean(found) for found in buckets.values())


def _mean(found: list[tuple[float, float, int]]) -> tuple[float, float]:
    tokens = sum(count for _, _, count in found)
    return sum(n * count for n, _, count in found) / tokens, sum(seconds for _, seconds, _ in found) / tokens


def _spans(step: StepEvents) -> Iterator[tuple[float, float, int]]:
    """When a response was in a slot, and the tokens that it got there."""
    taken: dict[str, tuple[float, int]] = {}
    for event in step.events:
        if event["e"] in TAKES_A_SLOT:
            taken[event["id"]] = event["t"], event.get("tokens", 0)
        elif event["e"] in LEAVES_ITS_SLOT and event["id"] in taken:
            begin, had = taken.pop(event["id"])
            made = event.get("tokens", 0) - had
            if made > 0 and event["t"] > begin:
                yield begin, event["t"], made
