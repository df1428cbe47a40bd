"""6.3: 1.5 x the time after which 80 % had finished."""

import math

import pytest
from tests.helpers.rollout import FakeView

from untail.errors import ConfigError
from untail.rollout.finish.deadline import Deadline
from untail.rollout.points import MECHANISMS


def build(**fields) -> Deadline:
    return MECHANISMS.build({"name": "deadline", **fields}, "mechanisms.deadline")


def test_there_is_no_deadline_until_enough_have_finished():
    mechanism = build()
    assert mechanism.closes_at(FakeView(began=10.0, now=12.0)) == math.inf  # nothing has started
    assert mechanism.closes_at(FakeView(began=10.0, now=12.0, started=10, ended=7)) == math.inf
    assert mechanism.closes_at(FakeView(began=10.0, now=14.0, started=10, ended=8)) == 10.0 + 1.5 * 4.0


def test_it_stands_once_it_is_known():
    """Whatever finishes or is started later."""
    mechanism = build()
    mechanism.closes_at(FakeView(began=10.0, now=14.0, started=10, ended=8))
    assert mechanism.closes_at(FakeView(began=10.0, now=15.0, started=20, ended=9)) == 16.0


def test_every_step_has_its_own():
    mechanism = build()
    mechanism.closes_at(FakeView(step=1, began=0.0, now=4.0, started=10, ended=8))
    assert mechanism.closes_at(FakeView(step=2, began=6.0, now=7.0, started=10, ended=0)) == math.inf
    assert mechanism.closes_at(FakeView(step=2, began=6.0, now=8.0, started=10, ended=10)) == 9.0


def test_share_and_factor():
    mechanism = build(share=0.5, factor=1.0)
    assert mechanism.closes_at(FakeView(now=3.0, started=10, ended=4)) == math.inf
    assert mechanism.closes_at(FakeView(now=3.0, started=10, ended=5)) == 3.0


def test_what_is_unfinished_closes_with_what_it_has():
    assert build().rest == "close"


@pytest.mark.parametrize("fields", [{"share": 1.0}, {"share": 0.0}, {"factor": 0.9}])
def test_what_cannot_be_is_refused(fields):
    (name,) = fields
    with pytest.raises(ConfigError, match=f"mechanisms.deadline.{name} = {fields[name]}"):
        build(**fields)
