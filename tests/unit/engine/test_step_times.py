"""What a decode step takes: learnt from steps, per size."""

import pytest

from untail.engine.step_times import StepTimes


def test_nothing_is_known_at_first():
    assert StepTimes().estimate(4) == 1.0


def test_linear_between_what_is_known_and_nearest_outside():
    times = StepTimes()
    times.record(4, 0.1)
    times.record(16, 0.4)
    assert times.estimate(10) == pytest.approx(0.25)
    assert (times.estimate(4), times.estimate(16)) == (0.1, 0.4)
    assert (times.estimate(1), times.estimate(1000)) == (0.1, 0.4)


def test_sizes_of_one_bucket_are_one_point_at_their_mean():
    times = StepTimes()
    for _ in range(100):
        times.record(4, 0.1)
        times.record(6, 0.3)
    assert times.estimate(4) == times.estimate(7) == pytest.approx(0.2, abs=0.02)


def test_old_measurements_fade():
    times = StepTimes()
    times.record(8, 5.0)
    for _ in range(100):
        times.record(8, 0.1)
    assert times.estimate(8) == pytest.approx(0.1, rel=0.01)
