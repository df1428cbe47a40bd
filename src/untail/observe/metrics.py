"""A step's figures, computed from its events alone (see events.py), so that they can be recomputed from any run.

Invariant: fields whose names end in `_s` are times, and those in `TIMED` are made from times or measured on the
machine; everything else is the same for two runs with the same seed in deterministic mode. What is not defined in a
step (the mean of nothing) is None. The definitions are those of the documentation's table of figures.

What is trained counts in the step that trains it, whenever it was generated; tokens count in the step that generates
them. With deferral a ratio of the two can exceed 1 in one step; over a run it cannot.
"""

import math
from collections import Counter
from collections.abc import Iterable
from statistics import fmean, median
from typing import Any

from untail.history.quality import prediction_quality
from untail.observe.accounts import step_accounts
from untail.observe.drafts import with_ratios
from untail.observe.step import StepEvents, covered, made
from untail.types import Event

TIMED = (
    *("throughput", "samples_per_s", "ett", "slot_bubble", "tail_share", "tail_utilisation", "device_bubble"),
    "peak_mem",
)
Row = dict[str, Any]


def step_metrics(events: list[Event], concurrency: int, engines: int = 1, devices: int | None = None) -> Row:
    """`events`: those of one step, from `step` to `done`. `concurrency`: the slots of all `engines` together.
    `devices`: those of engines and learner; unset: they share them."""
    step = StepEvents(events)
    update = step.one("update")
    return {
        "step": events[0]["step"],
        **_trained(step),
        **_ended(step),
        **_rates(step),
        **_slots(step, concurrency, engines),
        **_decisions(step),
        **_turns(step),
        **_device(step, devices or engines),
        "drafts": {name: with_ratios(counts) for name, counts in step.one("rolled_out").get("drafts", {}).items()},
        "wall_s": step.wall_s,
        "rollout_s": step.rollout_s,
        "update_s": step.update_s,
        "phases": _phases(step),
        "accounts": step_accounts(events),
        "learn": {key: value for key, value in update.items() if key not in ("e", "t", "step")},
    }


def _trained(step: StepEvents) -> Row:
    """Of what the update learned from: masked members teach nothing. For `pass1` everybody in the update counts, and
    whoever was stopped did not pass, whatever penalty it got."""
    learned = [member for member in step.members if member["use"] != "masked"]
    lengths = sorted(member["tokens"] for member in learned)
    passed = (max(0.0, member["reward"]) if member["use"] == "trained" else 0.0 for member in step.members)
    return {
        "reward": _mean(member["reward"] for member in learned),
        "pass1": _mean(passed),
        "trajectories": len(learned),
        "len_mean": _mean(lengths),
        "len_p50": median(lengths) if lengths else None,
        "len_p99": lengths[math.ceil(0.99 * len(lengths)) - 1] if lengths else None,
        "len_max": lengths[-1] if lengths else None,
        "staleness": _staleness(learned, step.one("step")["version"]),
        "zero_variance": _mean(map(_is_flat, step.all("train"))),
    }


def _is_flat(group: Event) -> bool:
    """All that it learns from got the same reward: it teaches nothing."""
    rewards = [member["reward"] for member in group["members"] if member["use"] != "masked"]
    return max(rewards, default=0.0) - min(rewards, default=0.0) <= 1e-9


def _staleness(learned: list[dict[str, Any]], version: int) -> Row:
    """Versions between sampling and training, per token. Of each member the first and the last version are known: half
    of its tokens count as of either."""
    dated = [member for member in learned if member["tokens"]]
    tokens = sum(member["tokens"] for member in dated)
    age = sum(member["tokens"] * (version - fmean(member["versions"])) for member in dated)
    oldest = min((member["versions"][0] for member in dated), default=version)
    return {"mean": age / tokens if tokens else None, "max": version - oldest}


def _ended(step: StepEvents) -> Row:
    """Of what ended by itself in this step, wherever it goes."""
    ends, failures = step.all("end"), [score["failure"] for score in step.all("score") if score["failure"]]
    return {
        "prompt_tokens": sum(end["prompt_tokens"] for end in ends),
        "entropy": _mean(end["entropy"] for end in ends),
        "ends": dict(Counter(end["end"] for end in ends)),
        # Where a step's close has cut it is no boundary: it had not used up its stride.
        "first_segment": _mean(end["boundaries"] == 0 for end in ends if "boundaries" in end),
        "score_failures": dict(Counter(failure.partition(":")[0] for failure in failures)),
        "partial_failures": dict(Counter(event["failure"].partition(":")[0] for event in step.all("partial"))),
        "prediction": prediction_quality([(e["predicted"], e["tokens"]) for e in ends if e["predicted"] is not None]),
    }


def _rates(step: StepEvents) -> Row:
    generated, wall = step.one("rolled_out")["generated"], step.wall_s
    prompt_tokens = sum(end["prompt_tokens"] for end in step.all("end"))
    trained = sum(member["use"] != "masked" for member in step.members)
    rewarded = sum(made(m) for m in step.members if m["use"] == "trained" and m["reward"] > 0)
    effective = sum(_effective_tokens(group["members"]) for group in step.all("train"))
    return {
        "tokens": generated,
        "rewarded_tokens": rewarded,
        "etr": _ratio(rewarded, generated),
        "effective_tokens": effective,
        "ett": _ratio(effective, wall),
        "throughput": _ratio(generated + prompt_tokens, wall),
        "samples_per_s": _ratio(trained, wall),
    }


def _effective_tokens(members: list[dict[str, Any]]) -> int:
    """Of those that ran to their end and have an advantage: their reward differs from their group's mean."""
    mean = _mean(member["reward"] for member in members if member["use"] != "masked")
    return sum(made(m) for m in members if m["use"] == "trained" and abs(m["reward"] - mean) > 1e-9)


def _slots(step: StepEvents, concurrency: int, engines: int) -> Row:
    """The bubble is 1 - integral of running sequences / (target concurrency x rollout seconds); the tail, the part of
    the rollout after 90 % of those that it trains had finished. What finished in an earlier step had at its start. An
    engine is of use in the tail while it runs something."""
    spans = step.engine_spans()
    running = sum(end - begin for own in spans.values() for begin, end in own)
    finished = {event["id"]: event["t"] for kind in ("stop", "end") for event in step.all(kind)}
    times = sorted(finished.get(member["id"], step.began) for member in step.members)
    nine_tenths = times[-(-9 * len(times) // 10) - 1] if times else step.rolled_out
    tail_s = step.rolled_out - nine_tenths
    in_tail = ([(max(begin, nine_tenths), end) for begin, end in own if end > nine_tenths] for own in spans.values())
    return {
        "slot_bubble": max(0.0, 1 - running / (concurrency * step.rollout_s)) if step.rollout_s else 0.0,
        "tail_share": _ratio(tail_s, step.rollout_s),
        "tail_utilisation": sum(map(covered, in_tail)) / (engines * tail_s) if tail_s else None,
    }


def _decisions(step: StepEvents) -> Row:
    """What was generated and thrown away, overrun and all, and what stopped it."""
    started = len(step.all("start")) + len(step.all("fork"))
    reasons = sorted({stop["reason"] for stop in step.all("stop")})
    bad = {event["id"]: made(event) for kind in ("stop", "cancel") for event in step.all(kind)}
    tokens = sum(bad.values()) + sum(left["overrun"] for left in step.all("left") if left["id"] in bad)
    return {
        "bad_tokens": tokens,
        "bad_generation": _ratio(tokens, step.one("rolled_out")["generated"]),
        "started": started,
        "forks": len(step.all("fork")),
        "pruning": {reason: _pruning(step, reason, started) for reason in reasons},
    }


def _pruning(step: StepEvents, reason: str, started: int) -> Row:
    """`by_segment`: how many segments each had, the one that it was stopped in included."""
    segments = [stop["segments"] for stop in step.all("stop") if stop["reason"] == reason]
    return {
        "stopped": len(segments),
        "started": started,
        "by_segment": {str(index): count for index, count in sorted(Counter(segments).items())},
    }


def _turns(step: StepEvents) -> Row:
    """Of what ended by itself in this step. Without an environment a trajectory is one turn."""
    ends = step.all("end")
    failures = [end["tool_failure"] for end in ends if end.get("tool_failure")]
    return {
        "turns": _mean(end.get("turns", 1) for end in ends),
        "tool_wait_s": math.fsum(end.get("tool_s", 0.0) for end in ends),
        "tool_failures": dict(Counter(failure.partition(":")[0] for failure in failures)),
    }


def _device(step: StepEvents, devices: int) -> Row:
    """An engine keeps one busy, and so does an update, also while it is made from portions of the batch."""
    load = step.one("rolled_out")
    busy = load["busy_s"] + step.update_s + step.one("update").get("early_s", 0.0)
    return {
        "device_bubble": max(0.0, 1 - busy / (devices * step.wall_s)) if step.wall_s else 0.0,
        "computed": load["computed"],
        "recomputed": load["recomputed"],
        "preemption": _ratio(load["recomputed"], load["computed"]),
        "preemptions": load["preemptions"],
        "kv_used": load["kv_used"],
        "peak_mem": load["peak_mem"],
    }


def _phases(step: StepEvents) -> Row:
    """The step's seconds, each in one phase. `rollout_s`: some slot is busy; `score_s`: none is, but a score is waited
    for; `tool_s`: neither, but an environment is; `logprob_s` and `update_s`: the learner's, without those that it had
    during the rollout, on portions of the batch; `sync_s`: pausing the engine and publishing the weights. (A
    deterministic run's clock stands still during an update, but the trainer's own seconds are real.)"""
    slots, update = step.slot_spans(), step.one("update")
    rollout = covered(slots)
    score = covered(slots + step.scoring_spans()) - rollout
    tool = covered(slots + step.scoring_spans() + step.tool_spans()) - rollout - score
    logprob, learn = update.get("logprob_s", 0.0), update.get("update_s", 0.0)
    late = 1 - _ratio(update.get("early_s", 0.0), logprob + learn)
    return {
        "rollout_s": rollout,
        "score_s": score,
        "tool_s": tool,
        "logprob_s": logprob * late,
        "update_s": learn * late,
        "sync_s": max(0.0, step.update_s - (logprob + learn) * late),
        "idle_s": step.wall_s - step.update_s - rollout - score - tool,
    }


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
