"""How many steps a launch has: as many as keep the device busy until the host has sent the next one.

Invariant: FEWEST to MOST of them. Whoever ends within a launch wastes the rest of it, and control waits for it, so
there are no more than the host needs. It is the host's own time that counts, between two launches with nothing else to
compute in between: many rows make it long, and so do other threads that hold the interpreter.
"""

import math
from time import perf_counter

FEWEST, MOST = 8, 24
MARGIN = 1.25  # the host is not always as quick as the last time
WEIGHT = 0.3  # of the newest measurement


class Pace:
    def __init__(self) -> None:
        self.steps = FEWEST
        self._host_s = self._step_s = 0.0  # between two launches; of a step on the device
        self._last: float | None = None  # when the launch before was read, and nothing else has run since

    def interrupt(self) -> None:
        """Something else is computed, or nothing at all: what it takes is not what a launch costs the host."""
        self._last = None

    def read(self, steps: int, device_s: float, waited_s: float) -> None:
        """A launch was read just now, after the host had waited for it."""
        now = perf_counter()
        if self._last is not None and device_s:
            self._host_s = _blend(self._host_s, now - self._last - waited_s)
            self._step_s = _blend(self._step_s, device_s / steps)
            self.steps = max(FEWEST, min(MOST, math.ceil(MARGIN * self._host_s / self._step_s)))
        self._last = now


def _blend(known: float, new: float) -> float:
    return known + WEIGHT * (new - known) if known else new
