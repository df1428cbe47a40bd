"""Groups that are handed on before their step closes.

Invariant: whatever is still to come, a group that is handed on is in the step's batch, and each of the batch is handed
on once. Who would be taken and who may yet be displaced by an older one is the pool's to say (`Pool.certain`).
"""

from collections.abc import Callable, Sequence

from untail.rollout.stage import Stage
from untail.types import Group

Give = Callable[[Group], object]


class Certain:
    def __init__(self, stage: Stage, give: Give | None, early: bool = True):
        """Without `give` nobody wants them; without `early` nobody before the step closes."""
        self._stage = stage
        self._give = give
        self._early = early and give is not None
        self._given: set[str] = set()
        self._seen = (0, 0)  # groups ready and under way, when it was last looked

    def look(self) -> None:
        """After something has happened."""
        pool = self._stage.pool
        if self._early and self._seen != (seen := (len(pool.ready), len(pool.live))):
            self._seen = seen
            self.hand_on(pool.certain(self._stage.batch_size))

    def hand_on(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if self._give is not None and group.id not in self._given:
                self._given.add(group.id)
                self._give(group)
