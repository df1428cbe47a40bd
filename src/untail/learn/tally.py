"""Figures of an update, gathered over chunks and micro-batches.

Invariant: a mean is over all values that were added, however they were cut up. Values stay on the device until
`figures` is asked for, so that gathering never waits for it.
"""

import math

import torch
from torch import Tensor


class Tally:
    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Tensor] = {}

    @torch.no_grad()
    def mean(self, **values: Tensor) -> None:
        for name, value in values.items():
            # float64, so that the mean of a million ratios of 1 is 1
            self._sums[name] = self._sums.get(name, 0) + value.sum(dtype=torch.float64)
            self._counts[name] = self._counts.get(name, 0) + value.numel()

    @torch.no_grad()
    def peak(self, **values: Tensor) -> None:
        for name, value in values.items():
            largest = value.max()
            self._peaks[name] = torch.maximum(self._peaks[name], largest) if name in self._peaks else largest

    def figures(self) -> dict[str, float]:
        """Those that are finite: they go into JSON, and why one is not is told by what was skipped."""
        figures = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        figures |= {name: float(peak) for name, peak in self._peaks.items()}
        return {name: figure for name, figure in figures.items() if math.isfinite(figure)}
