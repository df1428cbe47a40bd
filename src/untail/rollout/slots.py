"""Who runs where: the slots of all engines, and how many of them each lane has taken.

Invariant: a slot is held by one member at most, and a lane never holds more than its share, rounded up.
"""

import heapq
import math
from collections import Counter

from untail.rollout.live import Member, Route


class Slots:
    def __init__(self, engines: int, each: int):
        self.total = engines * each
        self._free = [list(range(each)) for _ in range(engines)]
        self._lanes: Counter[str] = Counter()
        self._closed: set[int] = set()  # engines that take nobody now
        self._lane_of: dict[tuple[int, int], str] = {}  # by slot: a member's route may change while it holds one

    @property
    def free(self) -> int:
        return sum(len(slots) for engine, slots in enumerate(self._free) if engine not in self._closed)

    def free_engines(self) -> list[int]:
        """Those with a free slot, the emptiest first."""
        return sorted((e for e in range(len(self._free)) if self.has_free(e)), key=lambda e: -len(self._free[e]))

    def has_free(self, engine: int) -> bool:
        return bool(self._free[engine]) and engine not in self._closed

    def close(self, engine: int) -> None:
        """Nobody gets a slot there any more; who has one keeps it."""
        self._closed.add(engine)

    def open(self, engine: int) -> None:
        self._closed.discard(engine)

    def is_open(self, engine: int) -> bool:
        return engine not in self._closed

    def admits(self, route: Route) -> bool:
        return self._lanes[route.lane] < math.ceil(route.share * self.total)

    def take(self, member: Member, engine: int) -> None:
        """Pre: the engine has a free slot."""
        slot = heapq.heappop(self._free[engine])
        member.engine, member.slot = engine, slot
        self._lane_of[engine, slot] = member.route.lane
        self._lanes[member.route.lane] += 1

    def leave(self, member: Member) -> None:
        """Its KV may stay where it is. Pre: it holds a slot."""
        assert member.engine is not None
        assert member.slot is not None
        heapq.heappush(self._free[member.engine], member.slot)
        self._lanes[self._lane_of.pop((member.engine, member.slot))] -= 1
        member.slot = None

    def hand_over(self, member: Member, heir: Member) -> None:
        """Another takes its place, in the same sequence of the same engine."""
        heir.engine, heir.slot = member.engine, member.slot
        member.engine = member.slot = None
