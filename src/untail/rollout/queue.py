"""Members that wait for a slot.

Invariant: in the order in which they get one: what is overdue, then what is unfinished, then new work by priority; in
each the earlier admitted first.
"""

from bisect import insort
from collections.abc import Iterator

from untail.rollout.live import Member

Key = tuple[bool, bool, float, int]


class Queue:
    def __init__(self) -> None:
        self._items: list[tuple[Key, Member]] = []
        self._overdue: set[str] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Member]:
        return iter([member for _, member in self._items])

    def put(self, member: Member) -> None:
        insort(self._items, (self._key(member), member), key=lambda item: item[0])

    def remove(self, members: set[Member]) -> None:
        if members and self._items:
            self._items = [item for item in self._items if item[1] not in members]

    def hurry(self, groups: set[str]) -> None:
        """From now on these groups are overdue, and no others."""
        self._overdue = groups
        self._items = sorted(((self._key(member), member) for _, member in self._items), key=lambda item: item[0])

    def _key(self, member: Member) -> Key:
        overdue = member.ghost is None and member.group.id in self._overdue
        return (not overdue, member.is_new, -member.group.plan.priority if member.is_new else 0.0, member.serial)
