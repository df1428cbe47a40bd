"""How much a stretch of tokens repeats itself."""

from collections.abc import Sequence


def cycle_repeats(tokens: Sequence[int], max_period: int, min_tokens: int = 1) -> int:
    """How often the same stretch of at most `max_period` tokens stands at the end, time after time without a gap; the
    largest number over all periods. Repetitions that are together shorter than `min_tokens` do not count. 1: nothing
    is repeated. Pre: there are tokens."""
    most = 1
    for period in range(1, min(max_period, len(tokens) // 2) + 1):
        if tokens[-1] != tokens[-1 - period]:  # as a rule: no need to count
            continue
        repeats = 1 + _matches(tokens, period) // period
        if repeats > most and repeats * period >= min_tokens:
            most = repeats
    return most


def _matches(tokens: Sequence[int], period: int) -> int:
    """How many tokens at the end equal the one a period before."""
    matches = 0
    for here, before in zip(reversed(tokens), reversed(tokens[:-period]), strict=False):
        if here != before:
            break
        matches += 1
    return matches


def repeated_ngram_share(tokens: Sequence[int], n: int = 4) -> float:
    """Of all runs of `n` tokens, the share that stood before among `tokens`; 0 with fewer than `n` tokens."""
    runs = len(tokens) - n + 1
    if runs < 1:
        return 0.0
    distinct = len(set(zip(*(tokens[first:] for first in range(n)), strict=False)))
    return (runs - distinct) / runs


def repeats_ngrams(tokens: Sequence[int], n: int, share: float) -> bool:
    """Whether more than `share` of the runs of `n` tokens are repeated. A repeated run ends in a repeated token, and in
    ordinary text there are too few of these: they are counted several times faster."""
    repeated_tokens = len(tokens) - len(set(tokens))
    return repeated_tokens > share * (len(tokens) - n + 1) and repeated_ngram_share(tokens, n) > share
