"""A curve of measured seconds: in between it is between, outside it is hopeful, and single outliers move nothing."""

import pytest

from untail.draft.choose.curve import KEPT, Curve


def curve(*points) -> Curve:
    made = Curve()
    for size, seconds in points:
        made.record(size, seconds)
    return made


def test_between_two_sizes_it_is_between_their_seconds():
    assert curve((4, 1.0), (16, 4.0)).estimate(10) == pytest.approx(2.5)


def test_smaller_costs_in_proportion_and_larger_no_more_up_to_twice():
    made = curve((4, 1.0), (16, 4.0))
    assert made.estimate(2) == pytest.approx(0.5)
    assert made.estimate(32) == pytest.approx(4.0)
    assert made.estimate(64) == pytest.approx(4.0 + 32 * 3 / 12)


def test_one_size_alone_says_something_of_all():
    assert curve((8, 2.0)).estimate(8) == pytest.approx(2.0)
    assert curve((8, 2.0)).estimate(24) == pytest.approx(2.0 + 8 * 2 / 8)


def test_an_outlier_moves_nothing():
    assert curve((8, 2.0), (8, 2.0), (8, 200.0)).estimate(8) == pytest.approx(2.0)


def test_the_latest_measurements_count():
    made = curve(*[(8, 2.0)] * 100, *[(8, 3.0)] * KEPT)
    assert made.estimate(8) == pytest.approx(3.0)


def test_it_survives_a_checkpoint():
    made, other = curve((4, 1.0), (16, 4.0)), Curve()
    assert not other
    other.restore(made.state())
    assert other
    assert other.estimate(10) == made.estimate(10)
