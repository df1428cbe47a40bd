"""What became of every trajectory of a run, and what the audit says about those that were not waited for.

Invariant: the audit draws from all that are stopped or cancelled at one rate, whatever they wrote, so that each of the
audited stands for as many of the rest as there are for one of them.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import Any, NamedTuple

from untail.observe.interval import wilson
from untail.types import Event


class Outcome(NamedTuple):
    """Of a trajectory that came to its own end."""

    tokens: int
    reward: float


class Fates:
    """Hears of every event of a run in turn."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.lengths: dict[str, int] = {}  # of those that ended by themselves
        self.scored: dict[str, Outcome] = {}  # of these, once the reward is known
        self.kept: list[str] = []
        self.stopped: dict[str, str] = {}  # why
        self.cancelled: set[str] = set()
        self.audited: dict[str, Outcome] = {}  # of those that ran on for the audit, to their end

    def hear(self, event: Event) -> None:
        match event["e"]:
            case "start" | "fork":
                self.started.add(event["id"])
            case "end":
                self.lengths[event["id"]] = event["tokens"]
            case "score" if event["id"] in self.lengths:
                self.scored[event["id"]] = Outcome(self.lengths[event["id"]], event["reward"])
            case "stop":
                self.stopped[event["id"]] = event["reason"]
            case "cancel":
                self.cancelled.add(event["id"])
            case "audit":
                self.audited[event["id"]] = Outcome(event["tokens"], event["reward"])
            case "train":
                self.kept += [member["id"] for member in event["members"] if member["use"] == "trained"]

    def false_kills(self) -> dict[str, dict[str, Any]]:
        """Per reason: of those that it stopped and that were audited, how many would have been rewarded."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, reason in self.stopped.items():
            by_reason[reason].append(name)
        return {reason: self._false_kills(names) for reason, names in sorted(by_reason.items())}

    def _false_kills(self, names: list[str]) -> dict[str, Any]:
        rewarded = [self.audited[name].reward > 0 for name in names if name in self.audited]
        counts = {"stopped": len(names), "audited": len(rewarded), "false": sum(rewarded)}
        if not rewarded:
            return {**counts, "rate": None, "ci95": None}
        return {**counts, "rate": fmean(rewarded), "ci95": list(wilson(fmean(rewarded), len(rewarded)))}

    def kept_vs_all(self) -> dict[str, float | None]:
        """Mean length and reward of what was kept (trained, and not stopped on the way) against all that started:
        those that came to their end, kept or not, and the rest as the audit estimates it. None where it cannot yet."""
        kept = [self.scored[name] for name in self.kept if name in self.scored]
        rest = (self.started & (self.stopped.keys() | self.cancelled)) - self.scored.keys()
        audited = [outcome for name, outcome in self.audited.items() if name in rest]
        known = [(outcome, 1.0) for outcome in self.scored.values()]
        known += [(outcome, len(rest) / len(audited)) for outcome in audited]
        everything = known if audited or not rest else []
        return {
            "kept_len": _mean((outcome.tokens, 1.0) for outcome in kept),
            "all_len": _mean((outcome.tokens, weight) for outcome, weight in everything),
            "kept_reward": _mean((outcome.reward, 1.0) for outcome in kept),
            "all_reward": _mean((outcome.reward, weight) for outcome, weight in everything),
        }


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    values = list(weighted)
    total = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / total if total else None
