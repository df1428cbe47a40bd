"""Figures of an update, gathered over chunks and micro-batches.

Invariant: a mean is over all values that were added, however they were cut up. Values stay on the device until a figure
is asked for, so that gathering never waits for it.
"""

import math

import torch
from torch import Tensor

Numbers = tuple[dict[str, tuple[float, int]], dict[str, float]]
"""By name: sums with their counts, and peaks."""


class Tally:
    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor | int] = {}
        self._peaks: dict[str, Tensor] = {}

    @torch.no_grad()
    def mean(self, over: Tensor | None = None, /, **values: Tensor) -> None:
        """`over`: where the values count; everywhere, if left out."""
        for name, value in values.items():
            counted = value if over is None else torch.where(over, value, 0)
            # float64, so that the mean of a million ratios of 1 is 1
            self._sums[name] = self._sums.get(name, 0) + counted.sum(dtype=torch.float64)
            self._counts[name] = self._counts.get(name, 0) + (value.numel() if over is None else over.sum())

    @torch.no_grad()
    def peak(self, over: Tensor | None = None, /, **values: Tensor) -> None:
        for name, value in values.items():
            largest = (value if over is None else torch.where(over, value, -torch.inf)).max()
            self._peaks[name] = torch.maximum(self._peaks[name], largest) if name in self._peaks else largest

    def take(self, other: "Tally") -> None:
        """All that `other` gathered, as if it had been added here."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0) + total
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]
        for name, peak in other._peaks.items():
            self._peaks[name] = torch.maximum(self._peaks[name], peak) if name in self._peaks else peak

    def numbers(self) -> "Numbers":
        """All of it, for another process to `add`."""
        means = {name: (float(total), int(self._counts[name])) for name, total in self._sums.items()}
        return means, {name: float(peak) for name, peak in self._peaks.items()}

    def add(self, numbers: "Numbers") -> None:
        means, peaks = numbers
        for name, (total, count) in means.items():
            self._sums[name] = self._sums.get(name, 0) + torch.tensor(total, dtype=torch.float64)
            self._counts[name] = self._counts.get(name, 0) + count
        for name, peak in peaks.items():
            largest = torch.tensor(peak, dtype=torch.float64)
            self._peaks[name] = torch.maximum(self._peaks[name], largest) if name in self._peaks else largest

    def mean_of(self, name: str) -> float:
        """NaN where nothing counted."""
        count = int(self._counts[name])
        return float(self._sums[name]) / count if count else math.nan

    def figures(self) -> dict[str, float]:
        """Those that are finite: they go into JSON, and why one is not is told by what was skipped."""
        figures = {name: self.mean_of(name) for name in self._sums}
        figures |= {name: float(peak) for name, peak in self._peaks.items()}
        return {name: figure for name, figure in figures.items() if math.isfinite(figure)}
