"""Drafts in a step's plan: how many each sequence is to carry, and which.

Invariant: none goes beyond its sequence's budget, the context or a stop token. Who drafts hears before each step how
much there is to do.
"""

from untail.engine.draft import Ask, Speculation
from untail.engine.scheduler import Plan, Scheduler
from untail.engine.sequence import Sequence
from untail.engine.validate import Limits


class Lookahead:
    def __init__(self, speculation: Speculation, scheduler: Scheduler, limits: Limits):
        self._speculation = speculation
        self._scheduler = scheduler
        self._limits = limits

    def tell_occupied(self) -> None:
        """Slots that are taken, or will be as soon as there is room: a prompt that is being filled in is work, too."""
        scheduler = self._scheduler
        waiting = len(scheduler.returning) + (len(scheduler.new) if scheduler.admits_new else 0)
        self._speculation.occupied(min(scheduler.max_seqs, len(scheduler.running) + waiting))

    def depths(self) -> dict[str, int]:
        """How many drafts each sequence should carry in the next step."""
        ready = [s for s in self._scheduler.running if s.wanted == 1]
        return {s.id: depth for s, depth in zip(ready, self._speculation.depths(ready), strict=True)}

    def with_room(self, depths: dict[str, int]) -> dict[str, int]:
        """Within each sequence's budget and the context."""
        room = lambda s: min(s.budget, self._limits.context - len(s.tokens)) - 1  # one more token is always drawn
        return {s.id: min(depths[s.id], room(s)) for s in self._scheduler.running if s.id in depths}

    def draft(self, plan: Plan) -> None:
        works = [work for work in plan.work if work.lookahead > 0]
        if works:
            drafts = self._speculation.propose([Ask(work.sequence, work.lookahead) for work in works])
            for work, draft in zip(works, drafts, strict=True):
                work.drafts.extend(_up_to_stop(draft.tokens, work.sequence))


def _up_to_stop(draft: list[int], sequence: Sequence) -> list[int]:
    """Nothing follows a stop token."""
    for place, token in enumerate(draft):
        if token in sequence.spec.sampling.stop_ids:
            return draft[: place + 1]
    return draft
