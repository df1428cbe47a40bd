"""9.5 as Laminar has it, generation by generation: an engine takes new work only when it runs empty.

Then it could take the newest weights first, so that a trajectory is of one version from end to end. Its own tail is the
price: that is what repack (3.5) is for.
"""

import math
from collections.abc import Sequence

from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Lane, Mechanism, Place, View


@MECHANISMS.register("generations")
class Generations(Mechanism, Lane, Place):
    sections = "9.5"

    def refill(self, view: View) -> int:
        slots = view.concurrency // view.engines
        return math.ceil(len(self._empty(view)) * slots / view.group)

    def place(self, member: Member, free: Sequence[int], view: View) -> int | None:
        """Beside its siblings, or else where nothing has begun: what refill asked for finds its slots there."""
        siblings = {other.engine for other in member.group.members if other.engine is not None}
        return next((engine for engine in free if engine in siblings), None)

    def _empty(self, view: View) -> set[int]:
        at_work = {member.engine for group in view.groups for member in group.members if member.is_open}
        return set(range(view.engines)) - at_work
