"""A profile from what a finished run has recorded.

Invariant: nothing is assumed that the run did not measure. Its memory is that of all roles together, so that a profile
made here has none, and plans made with it refuse nothing for lack of memory.
"""

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from untail.errors import DataError
from untail.flow.profile import Measured, Profile, RoleProfile, RolloutProfile
from untail.observe.figures import read_events
from untail.observe.metrics import step_metrics
from untail.observe.step import LEAVES_ITS_SLOT, TAKES_A_SLOT, StepEvents
from untail.types import Event

MOST_LENGTHS = 20_000
KINDS = 16  # powers of two that are told apart: up to 65,536 responses in an engine
RARE = 0.001  # of all the time that responses took: what was seen less says nothing

Span = tuple[float, float, int]
Amounts = npt.NDArray[np.float64]


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
    lengths = [length for step in steps for length in _lengths(step)]
    if not lengths:
        raise DataError(f"no response of the run {folder} came to its own end; there are no lengths to plan with")
    learners = _learners(run)
    roles: dict[Any, RoleProfile] = {name: _role(rows, f"{name}_s", learners) for name in ("update", "logprob")}
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


def _learners(run: Event) -> int:
    """Devices of the learner: by its plan, or else by its recipe."""
    if "plan" in run:
        return max(1, run["plan"]["placement"]["update"]["count"])
    flow = run["recipe"].get("flow", {})
    return 1 if flow.get("mode", "local") == "local" else flow["learner_devices"]


def _role(rows: list[dict[str, Any]], phase: str, devices: int) -> RoleProfile:
    """Steps that trained the same number of responses are one point."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        seconds[max(1, row["trajectories"])].append(row["learn"].get(phase, 0.0))
    points = [Measured(devices=devices, responses=n, seconds=median(taken)) for n, taken in sorted(seconds.items())]
    return RoleProfile(points=points)


def _lengths(step: StepEvents) -> list[int]:
    """Of whole responses, group by group: in the order in which they end, the short ones would be together."""
    whole = [end for end in step.all("end") if end["end"] in ("stop", "length")]
    return [end["tokens"] for end in sorted(whole, key=lambda end: end["id"])]


def _scoring(step: StepEvents) -> Measured:
    """Responses are scored as they end, beside those that still run: what a step takes for it comes after the last.
    Pre: one was scored."""
    scores = [event["t"] for event in step.all("score")]
    over = max((event["t"] for event in step.all("end")), default=max(scores))
    return Measured(devices=1, responses=len(scores), seconds=max(0.0, max(scores) - over))


def step_times(steps: list[StepEvents]) -> list[tuple[float, float]]:
    """Seconds of a decode step of one engine, by how many responses ran in it.

    While n run, each gets r(n) tokens a second. What a response got in its slot is the sum of r(n) over the time that
    it was there with n: one equation for each, and an r for each power of two of n. Of those that fit best, neighbours
    of which the fuller would be the faster are told apart no more.
    """
    found = [_shares(spans) for step in steps for spans in _spans_by_engine(step).values()]
    if not found:
        raise DataError("the run has no response of which begin and end are known; its step times cannot be told")
    tokens, seconds, together = (np.concatenate(column) for column in zip(*found, strict=True))
    kinds = [[kind] for kind in np.flatnonzero(seconds.sum(0) > RARE * seconds.sum())]
    while True:
        by_kind = np.stack([seconds[:, kind].sum(1) for kind in kinds], axis=1)
        rates, *_ = np.linalg.lstsq(by_kind, tokens, rcond=None)
        slower = np.append(rates[:-1] > rates[1:], rates[-1] > 0)
        if slower.all() or len(kinds) == 1:
            break
        wrong = min(int(np.argmin(slower)), len(kinds) - 2)
        kinds[wrong : wrong + 2] = [kinds[wrong] + kinds[wrong + 1]]
    running = [together[:, kind].sum() / seconds[:, kind].sum() for kind in kinds]
    return [(float(n), float(1 / rate)) for n, rate in zip(running, rates, strict=True)]


def _shares(spans: list[Span]) -> tuple[Amounts, Amounts, Amounts]:
    """Of each response of one engine: its tokens; the seconds that it ran beside 2^k to 2^(k+1) - 1 in all, for each k;
    and the same seconds times how many ran."""
    times = np.array([time for begin, end, _ in spans for time in (begin, end)])
    order = np.argsort(times, kind="stable")
    times, running = times[order], np.cumsum(np.array([1, -1] * len(spans))[order])[:-1]
    kind = np.frexp(np.maximum(running, 1))[1] - 1
    passed = np.zeros((len(times), KINDS))
    passed[np.arange(1, len(times)), np.minimum(kind, KINDS - 1)] = np.diff(times)
    weighted = passed * np.concatenate(([0], running))[:, None]
    begins, ends = (np.array([span[place] for span in spans]) for place in (0, 1))
    within = lambda amounts: _at(ends, times, amounts.cumsum(0)) - _at(begins, times, amounts.cumsum(0))
    return np.array([tokens for _, _, tokens in spans], dtype=float), within(passed), within(weighted)


def _at(when: Amounts, times: Amounts, summed: Amounts) -> Amounts:
    """Every `when` is one of the times."""
    return np.asarray(summed[np.searchsorted(times, when)])


def _spans_by_engine(step: StepEvents) -> dict[int, list[Span]]:
    """When a response was in a slot, and the tokens that it got there."""
    taken: dict[str, tuple[int, float, int]] = {}
    found: dict[int, list[Span]] = defaultdict(list)
    for event in step.events:
        if event["e"] in TAKES_A_SLOT:
            taken[event["id"]] = event.get("engine", 0), event["t"], event.get("tokens", 0)
        elif event["e"] in LEAVES_ITS_SLOT and event["id"] in taken:
            engine, begin, had = taken.pop(event["id"])
            made = event.get("tokens", 0) - had
            if made > 0 and event["t"] > begin:
                found[engine].append((begin, event["t"], made))
    return found
