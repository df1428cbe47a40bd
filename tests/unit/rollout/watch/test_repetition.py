"""Cycles and repeated runs by hand, and against the slowest code that can be written for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untail.rollout.watch.repetition import cycle_repeats, repeated_ngram_share, repeats_ngrams


@pytest.mark.parametrize(
    ("tokens", "repeats"),
    [
        ([1], 1),
        ([1, 2, 3], 1),
        ([1, 1], 2),
        ([1, 2, 3, 3, 3], 3),
        ([1, 2, 1, 2, 1, 2], 3),
        ([2, 1, 2, 1, 2, 1, 2], 3),  # half a cycle more does not count
        ([1, 2, 3, 1, 2, 3, 9], 1),  # the end is what counts
        ([1, 1, 2, 1, 1, 2, 1, 1], 2),  # "1" twice, and "2 1 1" twice
    ],
)
def test_cycles_by_hand(tokens, repeats):
    assert cycle_repeats(tokens, 64) == repeats


def test_a_longer_period_is_not_looked_for():
    assert cycle_repeats([1, 2, 3] * 4, 3) == 4
    assert cycle_repeats([1, 2, 3] * 4, 2) == 1


def test_short_stretches_do_not_count():
    assert cycle_repeats([5, 0, 0, 0, 0], 64, min_tokens=4) == 4
    assert cycle_repeats([5, 0, 0, 0, 0], 64, min_tokens=5) == 1
    assert cycle_repeats([1, 2, 3, 1, 2, 3, 0, 0], 64, min_tokens=3) == 1
    assert cycle_repeats([7, 0, 0, 7, 0, 0], 64, min_tokens=6) == 2  # not 2 of "0", but 2 of "7 0 0"


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([], 0),
        ([1, 1, 1], 0),  # no run of four
        ([1, 1, 1, 1], 0),
        ([1, 1, 1, 1, 1], 1 / 2),
        ([1, 2, 3, 4, 5, 6, 7], 0),
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], 1 / 6),
        ([1, 2] * 4, 3 / 5),
    ],
)
def test_repeated_runs_by_hand(tokens, share):
    assert repeated_ngram_share(tokens) == pytest.approx(share)


few_kinds = st.lists(st.integers(0, 2), min_size=1, max_size=40)
cyclic = st.builds(
    lambda head, cycle, times, cut: [*head, *(cycle * times)[cut:]],
    st.lists(st.integers(0, 2), max_size=5),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.integers(2, 6),
    st.integers(0, 3),
).filter(bool)


@given(few_kinds | cyclic, st.integers(1, 12), st.integers(1, 20))
def test_cycles_like_the_definition(tokens, max_period, min_tokens):
    counts = [
        times
        for period in range(1, max_period + 1)
        for times in range(2, len(tokens) // period + 1)
        if times * period >= min_tokens and tokens[len(tokens) - times * period :] == tokens[-period:] * times
    ]
    assert cycle_repeats(tokens, max_period, min_tokens) == max(counts, default=1)


@given(few_kinds | cyclic, st.integers(1, 5))
def test_repeated_runs_like_the_definition(tokens, n):
    runs = [tokens[at : at + n] for at in range(len(tokens) - n + 1)]
    repeated = sum(run in runs[:at] for at, run in enumerate(runs))
    assert repeated_ngram_share(tokens, n) == (repeated / len(runs) if runs else 0)


@given(few_kinds | cyclic, st.integers(1, 5), st.floats(0, 1))
def test_the_short_cut_says_the_same(tokens, n, share):
    for bound in (share, repeated_ngram_share(tokens, n)):
        assert repeats_ngrams(tokens, n, bound) == (repeated_ngram_share(tokens, n) > bound)
