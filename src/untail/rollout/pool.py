"""The groups between admission and update: under way, whole, and the ghosts of the audit.

Invariant: the unit is the group. It is under way until it is whole, then ready until it is trained; a member that is
deferred holds its group back. No update leaves behind a token that the staleness bound would not let into the next.
"""

from collections import Counter

from untail.rollout.live import LiveGroup, Member, State
from untail.types import Group


class Pool:
    def __init__(self, max_staleness: int):
        self.max_staleness = max_staleness
        self.version = 0  # of the weights that the step began with
        self.live: dict[str, LiveGroup] = {}
        self.ready: list[Group] = []
        self.ghosts: dict[str, Member] = {}
        self._asked: Counter[str] = Counter()  # prompts under way

    def add(self, group: LiveGroup) -> None:
        self.live[group.id] = group
        self._asked[group.plan.prompt.id] += 1

    def remove(self, group: LiveGroup) -> None:
        del self.live[group.id]
        self._asked[group.plan.prompt.id] -= 1

    def asks(self, prompt: str) -> bool:
        """The prompt is under way."""
        return self._asked[prompt] > 0

    def overdue(self, step: int) -> set[str]:
        """Groups under way that would be too stale after the update of `step`: it waits for them."""
        return {group.id for group in self.live.values() if self._is_overdue(group, step)}

    def has_overdue(self, step: int) -> bool:
        """The same, asked after every event: those admitted first are looked at first."""
        return any(self._is_overdue(group, step) for group in self.live.values())

    def _is_overdue(self, group: LiveGroup, step: int) -> bool:
        oldest = self._oldest_version(group)
        return oldest is not None and step - oldest > self.max_staleness

    def _oldest_version(self, group: LiveGroup) -> int | None:
        """Whoever runs has tokens, if only its engine has seen them yet: of the weights that the step began with, or
        newer ones."""
        oldest = group.oldest_version
        if oldest is not None:
            return oldest
        return self.version if any(member.state is State.RUNNING for member in group.members) else None

    def take_batch(self, step: int, wanted: int | None) -> list[Group]:
        """The oldest `wanted` of those that are ready (None: all), and whatever would be too stale for the next."""
        by_age = sorted(self.ready, key=lambda group: (group.oldest_version, group.id))
        forced = sum(step - group.oldest_version > self.max_staleness for group in by_age)
        count = len(by_age) if wanted is None else max(wanted, forced)
        self.ready = by_age[count:]
        return by_age[:count]

    def certain(self, wanted: int | None) -> list[Group]:
        """Of those that are ready, the ones that `take_batch` will take with this `wanted`, whatever comes before it is
        asked. New groups have tokens of the step's version or newer and higher numbers; of one under way, no token to
        come is older than that, either."""
        if wanted is None:
            return list(self.ready)
        ready = {group.id: group for group in self.ready}
        ages = [(group.oldest_version, group.id) for group in self.ready]
        for group in self.live.values():
            oldest = group.oldest_version
            ages.append((self.version if oldest is None else min(oldest, self.version), group.id))
        first = sorted(ages)[:wanted]
        return [ready[name] for version, name in first if name in ready and version <= self.version]

    @property
    def carried(self) -> int:
        """Tokens that were generated and whose fate is open."""
        waiting = sum(m.trajectory.made for g in self.live.values() for m in g.members if m.state is not State.GONE)
        whole = sum(trajectory.made for group in self.ready for trajectory in group.trajectories)
        return waiting + whole + sum(ghost.length - ghost.ghost_begin for ghost in self.ghosts.values())
