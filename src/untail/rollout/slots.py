"""Who runs where: the slots of all engines, and how many of them each lane has taken.

Invariant: a slot is held by one member at most, and a lane never holds more than its share, rounded up.
"""

import heapq
import math
from collections import Counter
from itertools import compress

from untail.rollout.live import Member, Route

MOST_STALE = 8  # entries an engine may have in the heap before those that are no longer true are thrown out


class Slots:
    def __init__(self, engines: int, each: int):
        self.engines = engines
        self.total = engines * each
        self.free = self.total
        self._free = [list(range(each)) for _ in range(engines)]
        self._counts = [each] * engines  # of slots that are to be had
        self._emptiest = [(-each, engine) for engine in range(engines)]  # a heap; an entry counts if it is still true
        self._closed: set[int] = set()  # engines that take nobody now
        self._lanes: Counter[str] = Counter()
        self._lane_of: dict[tuple[int, int], str] = {}  # by slot: a member's route may change while it holds one

    def free_engines(self) -> list[int]:
        """Those with a free slot, the emptiest first."""
        return sorted(compress(range(self.engines), self._counts), key=self._counts.__getitem__, reverse=True)

    def emptiest(self) -> int:
        """The first of them. Pre: there is one."""
        while -self._emptiest[0][0] != self._counts[self._emptiest[0][1]]:
            heapq.heappop(self._emptiest)
        return self._emptiest[0][1]

    def has_free(self, engine: int) -> bool:
        return bool(self._counts[engine])

    def close(self, engine: int) -> None:
        """Nobody gets a slot there any more; who has one keeps it."""
        self._closed.add(engine)
        self._count(engine)

    def open(self, engine: int) -> None:
        self._closed.discard(engine)
        self._count(engine)

    def is_open(self, engine: int) -> bool:
        return engine not in self._closed

    def admits(self, route: Route) -> bool:
        return self._lanes[route.lane] < math.ceil(route.share * self.total)

    def take(self, member: Member, engine: int) -> None:
        """Pre: the engine has a free slot."""
        slot = heapq.heappop(self._free[engine])
        self._count(engine)
        member.engine, member.slot = engine, slot
        self._lane_of[engine, slot] = member.route.lane
        self._lanes[member.route.lane] += 1

    def leave(self, member: Member) -> None:
        """Its KV may stay where it is. Pre: it holds a slot."""
        assert member.engine is not None
        assert member.slot is not None
        heapq.heappush(self._free[member.engine], member.slot)
        self._count(member.engine)
        self._lanes[self._lane_of.pop((member.engine, member.slot))] -= 1
        member.slot = None

    def hand_over(self, member: Member, heir: Member) -> None:
        """Another takes its place, in the same sequence of the same engine."""
        heir.engine, heir.slot = member.engine, member.slot
        member.engine = member.slot = None

    def _count(self, engine: int) -> None:
        """What is to be had there has changed."""
        count = 0 if engine in self._closed else len(self._free[engine])
        self.free += count - self._counts[engine]
        self._counts[engine] = count
        if self._counts[engine]:
            heapq.heappush(self._emptiest, (-self._counts[engine], engine))
        if len(self._emptiest) > MOST_STALE * len(self._counts):
            self._emptiest = sorted((-count, engine) for engine, count in enumerate(self._counts) if count)
