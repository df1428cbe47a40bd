"""What a decode step takes, as a function of how many sequences are in it.

Invariant: an estimate comes from what was measured; between two sizes it lies between their figures, and outside of
what was seen it is the nearest figure.
"""

from typing import NamedTuple

WEIGHT = 0.1  # of the newest measurement in its average
UNKNOWN = 1.0


class Mean(NamedTuple):
    """Moving averages over the steps of one bucket."""

    batch: float
    seconds: float

    def take(self, batch: int, seconds: float) -> "Mean":
        return Mean(self.batch + WEIGHT * (batch - self.batch), self.seconds + WEIGHT * (seconds - self.seconds))


class StepTimes:
    def __init__(self) -> None:
        self._means: dict[int, Mean] = {}  # by the power of two at or below the batch

    def record(self, batch: int, seconds: float) -> None:
        bucket = batch.bit_length()
        mean = self._means.get(bucket)
        self._means[bucket] = mean.take(batch, seconds) if mean else Mean(batch, seconds)

    def estimate(self, batch: int) -> float:
        """Linear between the buckets that are known; 1.0 where none is."""
        if not self._means:
            return UNKNOWN
        means = sorted(self._means.values())  # buckets do not overlap, so their mean batches are in order
        below = max((mean for mean in means if mean.batch <= batch), default=means[0])
        above = min((mean for mean in means if mean.batch >= batch), default=means[-1])
        if above.batch <= below.batch:
            return below.seconds
        share = (batch - below.batch) / (above.batch - below.batch)
        return below.seconds + share * (above.seconds - below.seconds)
