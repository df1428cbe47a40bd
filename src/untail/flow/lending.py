"""What a rollout takes when some of its devices come later: they are still with the learner when it begins.

Invariant: responses are begun in their order, each by a device that is there and has a slot free; who is late finds
what is left. Devices share what they have begun evenly.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence

Tau = Callable[[float], float]
"""Seconds of a decode step, by how many run in it."""
# Of the rollout's time, what is not followed here: responses are cut and sent elsewhere, which is the driver's work.
# Two cores without one for the driver lost a tenth to a third by it; prices that close speak for no lending.
TOLL = 0.1
MOST = 256  # responses that are followed; of more, and of their devices, a share


class _Crew:
    """Devices that work alike: a response on each of them gets a token in tau(how many run there)."""

    def __init__(self, devices: float, slots: int, tau: Tau):
        self.devices, self.tau = devices, tau
        self.room = max(1, round(devices * slots))
        self.made = 0.0  # tokens of whoever runs since the beginning
        self.ends: list[float] = []  # the tokens at which the responses that run have ended

    def take(self, waiting: deque[float]) -> None:
        while waiting and len(self.ends) < self.room:
            heapq.heappush(self.ends, self.made + waiting.popleft())

    @property
    def step_s(self) -> float:
        return self.tau(max(1.0, len(self.ends) / self.devices))

    @property
    def next_s(self) -> float:
        """To the next end."""
        return (self.ends[0] - self.made) * self.step_s if self.ends else math.inf

    def go_on(self, seconds: float) -> None:
        if self.ends:
            self.made += seconds / self.step_s
        while self.ends and self.ends[0] <= self.made + 1e-9:
            heapq.heappop(self.ends)


def seconds_with_late(lengths: Sequence[float], slots: int, tau: Tau, devices: int, late: int, after_s: float) -> float:
    """Of `devices`, so many come `after_s` seconds after the others. Pre: not all of them."""
    waiting = deque(lengths[:: -(-len(lengths) // MOST)])
    share = len(waiting) / len(lengths)
    now, crews = 0.0, [_Crew((devices - late) * share, slots, tau)]
    crews[0].take(waiting)
    while waiting or any(crew.ends for crew in crews):
        until_late = after_s - now if len(crews) == 1 else math.inf
        passed = min(until_late, *(crew.next_s for crew in crews))
        for crew in crews:
            crew.go_on(passed)
        now += passed
        if passed == until_late:
            crews.append(_Crew(late * share, slots, tau))
        for crew in crews:
            crew.take(waiting)
    return now
