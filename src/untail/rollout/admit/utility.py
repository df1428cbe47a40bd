"""2.2, utility per second (ours): rank by gain / expected cost, the gain being VADE's (2.1).

    cost of a response of L tokens = L (tau(c + 1) - tau(c))  while slots are free, c being the sequences that run
                                   = L tau(C) / C             when all C slots are taken
    and never less than that of `floor_tokens` with all slots taken

tau is the measured seconds of a decode step. So while slots are free and another sequence costs next to nothing, most
costs lie at the floor and the gain alone decides; under full load the length counts in full. A share of the places goes
purely by gain: long hard prompts are never starved.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from statistics import fmean
from typing import Any

from untail.config import PositiveFloat
from untail.rollout.admit.shared import PerStep, PositiveShare, Replay, Share
from untail.rollout.admit.vade import Vade
from untail.rollout.points import MECHANISMS, View
from untail.types import Prompt


@MECHANISMS.register("utility")
class Utility(Vade):
    sections = "2.2"

    class Config(Vade.Config):
        by_gain: Share = 0.05  # of the places
        floor_tokens: PositiveFloat = 64
        unknown: PositiveShare = 0.25  # of the budget: a response's length while no length at all is known

    def __init__(self, config: Any):
        super().__init__(config)
        self.lengths = PerStep(self._lengths)
        self.by_rate = PerStep(self._by_rate)
        self.at_full_load = PerStep(lambda view: Replay(self._order(view, 1.0)))
        self.numbers = PerStep(lambda view: {prompt.id: n for n, (_, prompt) in enumerate(self.drawn.at(view))})

    def _places(self, view: View) -> Iterator[Prompt]:
        """By the present cost for as many groups as find free slots, then as if every slot were taken; and last what
        the step has asked."""
        drawn, numbers = self.drawn.at(view), self.numbers.at(view)
        asked = sorted(numbers[name] for name in self.asked.at(view))
        free = max(0, view.concurrency - view.running) // view.group
        by_gain, taken = iter(range(len(drawn))), iter(self.at_full_load.at(view))
        slack = self._order(view, self._marginal(view))
        seen = set(asked)
        # Places are counted over rounds and steps: with few groups in each, too, every 20th goes by gain.
        first = (view.step - 1) * view.wanted + len(asked)
        for place in range(len(drawn) - len(asked)):
            order = by_gain if self._is_by_gain(first + place) else slack if place < free else taken
            number = next(number for number in order if number not in seen)
            seen.add(number)
            yield drawn[number][1]
        yield from (drawn[number][1] for number in asked)

    def _is_by_gain(self, place: int) -> bool:
        """The whole places owed to the gain become one more here; the addend keeps a whole number from being 0.99."""
        before, owed = (int(count * self.config.by_gain + 1e-9) for count in (place, place + 1))
        return owed > before

    def _marginal(self, view: View) -> float:
        """What one token costs now, where 1 is its cost when all slots are taken."""
        running, slots = max(1, view.running // view.engines), view.concurrency // view.engines
        one_more = view.step_seconds(running + 1) - view.step_seconds(running)
        return one_more * slots / view.step_seconds(slots)

    def _order(self, view: View, per_token: float) -> Iterator[int]:
        """Places in the order of gain, the highest gain per cost first.

        That is the smaller of gain / floor and gain / (length x what a token costs), and the orders by each alone are
        known for the whole step. So both are read side by side, and whoever is worth more than all that can still come
        goes next: the cost of a token changes with every refill, and to sort all prompts for it would take too long."""
        drawn, lengths, floor = self.drawn.at(view), self.lengths.at(view), self.config.floor_tokens
        worth = lambda number: drawn[number][0] / max(lengths[number] * per_token, floor)
        met: set[int] = set()
        waiting: list[tuple[float, int]] = []  # a heap
        for by_gain, by_rate in enumerate(self.by_rate.at(view)):
            for number in {by_gain, by_rate} - met:
                met.add(number)
                heappush(waiting, (-worth(number), number))
            most = min(drawn[by_gain][0] / floor, _over(drawn[by_rate][0], lengths[by_rate] * per_token))
            while waiting and -waiting[0][0] > most:
                yield heappop(waiting)[1]
        while waiting:
            yield heappop(waiting)[1]

    def _by_rate(self, view: View) -> list[int]:
        """Places in the order of gain, the highest gain per predicted token first."""
        drawn, lengths = self.drawn.at(view), self.lengths.at(view)
        return sorted(range(len(drawn)), key=lambda number: -_over(drawn[number][0], lengths[number]))

    def _lengths(self, view: View) -> list[float]:
        """Predicted, in the order of gain; what is unknown is as long as the others are on average."""
        predicted = [view.predictor.predict(prompt) for _, prompt in self.drawn.at(view)]
        known = [p.mean for p in predicted if p.source != "unknown"]
        usual = fmean(known) if known else self.config.unknown * view.budget
        return [usual if p.source == "unknown" else p.mean for p in predicted]


def _over(gain: float, tokens: float) -> float:
    """Where a token costs nothing, the floor alone counts."""
    return gain / tokens if tokens > 0 else math.inf
