"""Figures of how good predictions were."""

import random

import pytest

from untail.history.quality import prediction_quality


def auc(pairs):
    return prediction_quality(pairs)["auc_top10"]


def test_perfect_reversed_and_blind_predictions():
    actual = list(range(1, 41))
    assert auc([(length, length) for length in actual]) == 1.0
    assert auc([(-length, length) for length in actual]) == 0.0
    assert auc([(7, length) for length in actual]) == 0.5


def test_auc_is_the_share_of_pairs_in_the_right_order_with_ties_at_half():
    rng = random.Random(0)
    pairs = [(rng.randrange(12), rng.randrange(30)) for _ in range(95)]
    threshold = sorted(actual for _, actual in pairs)[-10]  # a tenth of 95, rounded up
    long = [predicted for predicted, actual in pairs if actual >= threshold]
    short = [predicted for predicted, actual in pairs if actual < threshold]
    wins = sum((a > b) + 0.5 * (a == b) for a in long for b in short)
    assert auc(pairs) == pytest.approx(wins / (len(long) * len(short)))


def test_whoever_ties_with_the_longest_tenth_belongs_to_it():
    pairs = [(9, 100), (8, 100), (7, 100)] + [(number / 10, number) for number in range(7)]
    assert auc(pairs) == 1.0


def test_one_class_alone_has_no_auc():
    assert auc([(1, 5), (2, 5), (3, 5)]) is None
    assert auc([(1, 5)]) is None


def test_error_and_factor():
    quality = prediction_quality([(100, 200), (100, 201), (100, 50), (100, 49), (0, 10)])
    assert quality["mae"] == (100 + 101 + 50 + 51 + 10) / 5
    assert quality["within_2x"] == 2 / 5
    assert quality["n"] == 5


def test_no_pairs():
    assert prediction_quality([]) == {"auc_top10": None, "mae": None, "within_2x": None, "n": 0}
