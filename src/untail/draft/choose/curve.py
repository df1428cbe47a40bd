"""Seconds as a function of a size, from what was measured.

Invariant: between two sizes that were measured an estimate lies between their figures. Outside of them it is hopeful,
so that a size which might pay is tried and then known: what is smaller costs in proportion, what is larger costs no
more up to twice the size. A figure is the median of the last few measurements of about its size: a step that was held
up by something else moves nothing.
"""

import math
from bisect import bisect_left
from collections import deque
from statistics import fmean, median
from typing import Any

KEPT = 16  # measurements per figure


class Curve:
    def __init__(self) -> None:
        self._kept: dict[int, deque[tuple[float, float]]] = {}  # (size, seconds), by half powers of two of the size
        self._points: list[tuple[float, float]] = []  # a figure for each, the smallest size first

    def __bool__(self) -> bool:
        return bool(self._points)

    def record(self, size: float, seconds: float) -> None:
        """Pre: size >= 1."""
        self._keep(size, seconds)
        self._points = self._figures()

    def estimate(self, size: float) -> float:
        """Pre: something was measured."""
        place = bisect_left(self._points, (size,))
        if place == 0:
            smallest, seconds = self._points[0]
            return seconds * size / smallest
        if place == len(self._points):
            return self._beyond(size)
        (left, low), (right, high) = self._points[place - 1 : place + 1]
        return low + (high - low) * (size - left) / (right - left)

    def state(self) -> list[list[float]]:
        return [[size, seconds] for kept in self._kept.values() for size, seconds in kept]

    def restore(self, state: list[Any]) -> None:
        self._kept = {}
        for size, seconds in state:
            self._keep(size, seconds)
        self._points = self._figures()

    def _keep(self, size: float, seconds: float) -> None:
        bucket = math.floor(2 * math.log2(size) + 1e-9)
        self._kept.setdefault(bucket, deque(maxlen=KEPT)).append((size, seconds))

    def _figures(self) -> list[tuple[float, float]]:
        return sorted((fmean(size for size, _ in kept), median(s for _, s in kept)) for kept in self._kept.values())

    def _beyond(self, size: float) -> float:
        """From twice the largest size on it goes along the line through the first and the last figure."""
        (smallest, low), (largest, high) = self._points[0], self._points[-1]
        slope = max(0.0, high - low) / (largest - smallest) if largest > smallest else high / largest
        return high + slope * max(0.0, size - 2 * largest)
