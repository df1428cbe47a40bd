"""A rollout some of whose devices come late."""

import numpy as np
import pytest

from untail.flow.cost import Curve, Rollout, Scaled
from untail.flow.lending import seconds_with_late

FLAT = Curve([(1, 1.0), (100, 1.0)])


@pytest.mark.parametrize(
    ("after_s", "seconds"),
    [
        (0, 20),  # two devices, four responses, one at a time
        (10, 30),  # the first has written one; each writes another, and one of them a third
        (25, 35),  # the last is left
        (30, 40),
        (1000, 40),
    ],
)
def test_who_is_late_finds_what_was_not_begun(after_s, seconds):
    assert seconds_with_late([10.0] * 4, 1, FLAT, devices=2, late=1, after_s=after_s) == pytest.approx(seconds)


def test_with_slots_for_all_nothing_is_left_for_the_late():
    assert seconds_with_late([10.0] * 4, 4, FLAT, devices=2, late=1, after_s=5.0) == pytest.approx(10.0)


def test_it_lies_between_all_devices_and_those_that_are_there():
    lengths = np.random.default_rng(0).integers(50, 150, 4096).tolist()
    rollout = Rollout(lengths, Curve([(1, 0.01), (64, 0.03)]), group=8, slots=16, batch=128)
    found = [rollout.lent_seconds(8, 2, after_s) for after_s in (0.0, 2.0, 8.0, 1e6)]
    assert found == sorted(found)
    assert found[0] == pytest.approx(rollout.seconds(8, 128))
    assert found[-1] == pytest.approx(rollout.seconds(6, 128), rel=0.1)


def test_what_was_begun_for_nothing_is_paid():
    """The late device had filled in two prompts, and comes so much later."""
    free, dear = (Rollout([10], FLAT, group=4, slots=2, batch=8, prefill_s=cost) for cost in (0.0, 10.0))
    later = free.lent_seconds(2, 1, 30.0) / free.seconds(2, 8)
    assert dear.lent_seconds(2, 1, 10.0) / dear.seconds(2, 8) == pytest.approx(later)
    assert later > free.lent_seconds(2, 1, 10.0) / free.seconds(2, 8)


def test_one_that_drifted_is_late_by_the_same_seconds():
    rollout = Rollout([10], FLAT, group=4, slots=1, batch=1)
    assert Scaled(rollout, 2.0).lent_seconds(2, 1, 20.0) == pytest.approx(2 * rollout.lent_seconds(2, 1, 10.0))
