"""A step's figures, computed from its events alone (see events.py), so that they can be recomputed from any run.

Invariant: fields whose names end in `_s` are times, and those in `TIMED` are made from times; everything else is the
same for two runs with the same seed in deterministic mode. The definitions are those of the documentation's table of
figures.
"""

from collections import Counter, defaultdict
from statistics import fmean, median
from typing import Any

from untail.types import Event

TIMED = ("throughput", "samples_per_s", "ett", "slot_bubble", "tail_share")


def step_metrics(events: list[Event], concurrency: int) -> dict[str, Any]:
    """`events`: those of one step, from `step` to `done`."""
    at = {event["e"]: event["t"] for event in events if event["e"] in ("step", "rolled_out", "update", "done")}
    starts = {event["id"]: event for event in events if event["e"] == "start"}
    ends = {event["id"]: event for event in events if event["e"] == "end"}
    scores = {event["id"]: event for event in events if event["e"] == "score"}
    update = next(event for event in events if event["e"] == "update")
    rewards = {name: score["reward"] for name, score in scores.items()}
    lengths = sorted(end["tokens"] for end in ends.values())
    tokens, wall, rollout = sum(lengths), at["done"] - at["step"], at["rolled_out"] - at["step"]
    prompt_tokens = sum(end["prompt_tokens"] for end in ends.values())
    effective = sum(ends[name]["tokens"] for name in _with_advantage(starts, rewards))
    return {
        "step": events[0]["step"],
        "reward": fmean(rewards.values()),
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "trajectories": len(ends),
        "len_mean": tokens / len(ends),
        "len_p50": median(lengths),
        "len_p99": lengths[int(0.99 * (len(lengths) - 1))],
        "len_max": lengths[-1],
        "entropy": fmean(end["entropy"] for end in ends.values()),
        "ends": dict(Counter(end["end"] for end in ends.values())),
        "score_failures": dict(Counter(s["failure"].partition(":")[0] for s in scores.values() if s["failure"])),
        "etr": sum(ends[name]["tokens"] for name, reward in rewards.items() if reward > 0) / tokens,
        "effective_tokens": effective,
        "ett": effective / wall if wall else 0.0,
        "throughput": (tokens + prompt_tokens) / wall if wall else 0.0,
        "samples_per_s": len(ends) / wall if wall else 0.0,
        "slot_bubble": _slot_bubble(starts, ends, concurrency, rollout),
        "tail_share": _tail_share(ends, at["step"], rollout),
        "wall_s": wall,
        "rollout_s": rollout,
        "update_s": at["update"] - at["rolled_out"],
        "learn": {key: value for key, value in update.items() if key not in ("e", "t", "step")},
    }


def _with_advantage(starts: dict[str, Event], rewards: dict[str, float]) -> list[str]:
    """Trajectories whose advantage is not zero: their reward differs from their group's mean."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, start in starts.items():
        groups[start["prompt"]].append(name)
    means = {prompt: fmean(rewards[name] for name in names) for prompt, names in groups.items()}
    return [name for name, start in starts.items() if abs(rewards[name] - means[start["prompt"]]) > 1e-9]


def _slot_bubble(starts: dict[str, Event], ends: dict[str, Event], concurrency: int, rollout: float) -> float:
    """1 - integral of running sequences / (target concurrency x rollout seconds)."""
    busy = sum(end["t"] - starts[name]["t"] for name, end in ends.items())
    return 1 - busy / (concurrency * rollout) if rollout else 0.0


def _tail_share(ends: dict[str, Event], begin: float, rollout: float) -> float:
    """Rollout seconds after 90 % of the trajectories had finished / rollout seconds."""
    times = sorted(end["t"] for end in ends.values())
    nine_tenths = times[max(0, -(-9 * len(times) // 10) - 1)]
    return 1 - (nine_tenths - begin) / rollout if rollout else 0.0
