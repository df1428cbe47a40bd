"""The audit: would those that were stopped have been rewarded?

Invariant: whether a trajectory is audited depends on its name and the seed alone, never on what it wrote, so that the
false-kill rate of the audited is an unbiased estimate of that of all. A reason whose rate surely exceeds the bound is
switched off.
"""

from dataclasses import dataclass
from typing import Any

from untail.observe.interval import wilson
from untail.types import stream_key

ENOUGH = 5  # audited trajectories: a single unlucky one must not end a watcher for good
CANCELLED = "cancelled"
"""The reason of those that a step did not wait for: they are audited for their length and reward, never blamed."""


@dataclass
class Verdicts:
    """What became of the audited of one reason."""

    audited: int = 0
    rewarded: int = 0

    def low(self, under_way: int) -> float:
        """The false-kill rate is surely no less, even if all that are under way end without reward: those who are
        rewarded end early. Pre: something was audited."""
        count = self.audited + under_way
        return wilson(self.rewarded / count, count)[0]


class Audit:
    def __init__(self, share: float, max_false_kills: float, seed: int):
        self.share = share
        self.max_false_kills = max_false_kills
        self.seed = seed
        self.off: set[str] = set()
        self._verdicts: dict[str, Verdicts] = {}

    def chooses(self, trajectory: str) -> bool:
        return stream_key(self.seed, "audit", trajectory) / 2**63 < self.share

    def hear(self, reason: str, rewarded: bool, under_way: int = 0) -> Verdicts:
        """An audited trajectory came to its end while `under_way` others of its reason have not. The reason is in `off`
        afterwards if this convicts it."""
        verdicts = self._verdicts.setdefault(reason, Verdicts())
        verdicts.audited += 1
        verdicts.rewarded += rewarded
        is_sure = verdicts.audited >= ENOUGH and verdicts.low(under_way) > self.max_false_kills
        if reason != CANCELLED and is_sure:
            self.off.add(reason)
        return verdicts

    def state(self) -> dict[str, Any]:
        verdicts = {reason: [v.audited, v.rewarded] for reason, v in self._verdicts.items()}
        return {"off": sorted(self.off), "verdicts": verdicts}

    def restore(self, state: dict[str, Any]) -> None:
        self.off = set(state["off"])
        self._verdicts = {reason: Verdicts(*numbers) for reason, numbers in state["verdicts"].items()}
