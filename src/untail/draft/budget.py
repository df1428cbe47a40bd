"""7.7, where a step's drafts are spent: on the sequences whose drafts are most likely accepted.

Invariant: the j-th draft of a sequence counts only if all before it were right, so it is worth a^j with a that
sequence's acceptance; the step's drafts go to the largest of these, one by one.
"""

import heapq
from collections.abc import Sequence

PRIOR, WEIGHT = 0.6, 4.0  # what is believed of a sequence that nobody has drafted for, and as how many drafts
FORGET = 0.9  # of what was seen, by each verification after it


class Acceptance:
    """The share of drafts that were right, recent ones above all: of each sequence, and of all."""

    def __init__(self) -> None:
        self._all = [0.0, 0.0]  # accepted, judged
        self._own: dict[str, list[float]] = {}

    @property
    def recent(self) -> float | None:
        """Of all sequences; None while nothing was drafted."""
        accepted, judged = self._all
        return accepted / judged if judged else None

    def begin(self, name: str) -> None:
        self._own[name] = [PRIOR * WEIGHT, WEIGHT]

    def end(self, name: str) -> None:
        del self._own[name]

    def of(self, name: str) -> float:
        accepted, judged = self._own[name]
        return accepted / judged

    def heard(self, name: str, drafted: int, accepted: int) -> None:
        """Drafts behind the first wrong one were not judged."""
        judged = min(drafted, accepted + 1)
        for tally in (self._all, *([self._own[name]] if name in self._own else ())):
            tally[0] = FORGET * tally[0] + accepted
            tally[1] = FORGET * tally[1] + judged


def spread(total: int, acceptances: Sequence[float], most: Sequence[int]) -> list[int]:
    """How many drafts each sequence gets of `total`, none more than its `most`; among equals the first goes first."""
    given = [0] * len(most)
    worth = [(-acceptance, number) for number, acceptance in enumerate(acceptances) if most[number] > 0]
    heapq.heapify(worth)
    for _ in range(min(total, sum(most))):
        value, number = worth[0]
        given[number] += 1
        if given[number] < most[number]:
            heapq.heapreplace(worth, (value * acceptances[number], number))
        else:
            heapq.heappop(worth)
    return given
