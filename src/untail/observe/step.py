"""The events of one step, sorted by kind: what each of its figures is computed from.

Invariant: a step runs from `step` to `done` and has each of `step`, `rolled_out`, `update` and `done` once.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from untail.types import Event

Span = tuple[float, float]
TAKES_A_SLOT = ("start", "resume")
LEAVES_ITS_SLOT = ("segment", "defer", "park", "end", "left")
ENDS_ITS_WAIT = ("reply", "end", "cancel", "fail", "left")


class StepEvents:
    def __init__(self, events: list[Event]):
        self.events = events
        self.by_kind: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            self.by_kind[event["e"]].append(event)
        self.began: float = self.one("step")["t"]
        self.rolled_out: float = self.one("rolled_out")["t"]
        self.wall_s: float = self.one("done")["t"] - self.began
        self.rollout_s = self.rolled_out - self.began
        self.update_s: float = self.one("update")["t"] - self.rolled_out

    def all(self, kind: str) -> list[Event]:
        return self.by_kind.get(kind, [])

    def one(self, kind: str) -> Event:
        return self.by_kind[kind][0]

    @property
    def members(self) -> list[dict[str, Any]]:
        """Of all groups that went into the update, the masked ones too."""
        return [member for group in self.all("train") for member in group["members"]]

    def slot_spans(self) -> list[Span]:
        """When a trajectory was in a slot, within the rollout; a slot that nobody left is held to its end."""
        return [span for spans in self.engine_spans().values() for span in spans]

    def engine_spans(self) -> dict[int, list[Span]]:
        """The same by engine."""
        taken: dict[str, tuple[int, float]] = {}
        spans: dict[int, list[Span]] = defaultdict(list)
        for event in self.events:
            if event["e"] in TAKES_A_SLOT:
                taken.setdefault(event["id"], (event["engine"], event["t"]))
            elif event["e"] in LEAVES_ITS_SLOT and event["id"] in taken:
                engine, begin = taken.pop(event["id"])
                spans[engine].append((begin, event["t"]))
        for engine, begin in taken.values():
            spans[engine].append((begin, self.rolled_out))
        return {engine: self._within(own) for engine, own in spans.items()}

    def scoring_spans(self) -> list[Span]:
        """When an answer was with its scorer, within the rollout."""
        scored = {event["id"]: event["t"] for event in self.all("score")}
        return self._within([(end["t"], scored[end["id"]]) for end in self.all("end") if end["id"] in scored])

    def tool_spans(self) -> list[Span]:
        """When a trajectory waited for its environment, within the rollout: one that was parked before waited from its
        begin, one that still is waits to its end. What runs for the audit alone does not count."""
        parked: dict[str, float] = dict.fromkeys(self.one("step").get("parked", []), self.began)
        spans = []
        for event in self.events:
            if event["e"] == "park":
                parked[event["id"]] = event["t"]
            elif event["e"] in ENDS_ITS_WAIT and event["id"] in parked:
                spans.append((parked.pop(event["id"]), event["t"]))
        return self._within(spans + [(begin, self.rolled_out) for begin in parked.values()])

    def _within(self, spans: list[Span]) -> list[Span]:
        clip = lambda t: min(max(t, self.began), self.rolled_out)
        return [(clip(begin), clip(end)) for begin, end in spans]


def made(event: dict[str, Any]) -> int:
    """Of a trajectory's tokens, those that were generated for it."""
    return event.get("made", event["tokens"])


def covered(spans: Iterable[Span]) -> float:
    """Seconds that lie within at least one of them."""
    total, reach = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total
