"""95 % confidence intervals for a mean score."""

import math
from collections.abc import Sequence

Z95 = 1.959964


def wilson(mean: float, n: int) -> tuple[float, float]:
    """Wilson's interval for a proportion; for other scores within [0, 1] it is on the safe side (their variance is
    less)."""
    centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Wilson's where scores lie within [0, 1], else the normal approximation."""
    n, mean = len(scores), math.fsum(scores) / len(scores)
    if min(scores) >= 0 and max(scores) <= 1:
        return wilson(mean, n)
    variance = math.fsum((score - mean) ** 2 for score in scores) / max(1, n - 1)
    half = Z95 * math.sqrt(variance / n)
    return mean - half, mean + half
