"""How good predictions of lengths were, once the lengths are known.

Invariant: a figure that is not defined (no pairs, no second class) is None, never a number that stands for nothing.
"""

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

Pair = tuple[float, int]
"""What was predicted, and how long it became. Only responses that were predicted and finished belong here."""


def prediction_quality(pairs: Sequence[Pair]) -> dict[str, float | int | None]:
    """`auc_top10` is how well the predictions tell the longest 10 % from the rest (0.5: not at all), `mae` the mean
    absolute error, `within_2x` the share that is off by a factor of at most 2."""
    return {
        "auc_top10": _auc_top10(pairs),
        "mae": fmean(abs(predicted - actual) for predicted, actual in pairs) if pairs else None,
        "within_2x": fmean(_within_2x(*pair) for pair in pairs) if pairs else None,
        "n": len(pairs),
    }


def _within_2x(predicted: float, actual: int) -> bool:
    return max(predicted, actual) <= 2 * min(predicted, actual)


def _auc_top10(pairs: Sequence[Pair]) -> float | None:
    """The longest tenth is rounded up, and whoever is as long as its shortest member belongs to it."""
    if not pairs:
        return None
    tenth = -(-len(pairs) // 10)
    threshold = sorted((actual for _, actual in pairs), reverse=True)[tenth - 1]
    return _auc([(predicted, actual >= threshold) for predicted, actual in pairs])


def _auc(scored: Sequence[tuple[float, bool]]) -> float | None:
    """The probability that a positive has a higher score than a negative, where a tie is worth half."""
    negatives_below = wins = positives = 0.0
    for _, tied in groupby(sorted(scored), key=lambda pair: pair[0]):
        flags = [flag for _, flag in tied]
        hits, misses = sum(flags), len(flags) - sum(flags)
        wins += hits * (negatives_below + misses / 2)
        negatives_below += misses
        positives += hits
    return wins / (positives * negatives_below) if positives and negatives_below else None
