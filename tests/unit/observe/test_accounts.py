"""Where every token went: each kind of fate, and books that balance step by step and over a run."""

import pytest
from tests.helpers.events import Log, member

from untail.observe.accounts import run_accounts, step_accounts


@pytest.fixture
def first() -> Log:
    """A step in which everything happens. Generated: a 10 + 20 + 30 + 5, b 7 + 8, c 12, and 3 past decisions; the
    cancelled one runs on for the audit and has 6 more; d is deferred with 9."""
    log = Log()
    log.begin(step=1, t=0)
    log.stop("a1", 1, 20, "loop")
    log.left("a1", 1, overrun=3)
    log.cancel("a3", 2, 5, audited=True)
    log("drop", 2, group="b", why="not kept", tokens=15)
    log("fail", 2, id="c0", group="c", tokens=12, error="out of memory")
    log("defer", 3, id="d0", tokens=9)
    stopped, masked = member("a1", 20, -1.0, "stopped"), member("a2", 30, 0.0, "masked")
    log.train(3, member("a0", 10, 1.0), stopped, masked)
    log.over(3, 4, 5, generated=10 + 20 + 30 + 5 + 15 + 12 + 3 + 6 + 9, carried=6 + 9)
    return log


@pytest.fixture
def second() -> Log:
    """The audit ends after 4 more tokens, and the deferred one is trained after 11 more."""
    log = Log()
    log.begin(step=2, t=5, carried=15)
    log.audit("a3", 6, "cancelled", tokens=15, extra=10, reward=1.0)
    log.train(7, member("d0", 20, 1.0))
    log.over(7, 8, 9, generated=4 + 11)
    return log


def test_every_fate(first, second):
    assert step_accounts(first.events) == {
        "carried_in": 0,
        "generated": 110,
        "trained": 10,
        "masked": 30,
        "stopped": 20,
        "dropped": 15,
        "cancelled": 5,
        "audited": 0,
        "overrun": 3,
        "failed": 12,
        "carried_out": 15,
        "unaccounted": 0,
    }
    books = step_accounts(second.events)
    assert (books["carried_in"], books["audited"], books["trained"], books["unaccounted"]) == (15, 10, 20, 0)


def test_a_token_that_nobody_knows_of_shows(first):
    first.events[-3]["generated"] += 1
    assert step_accounts(first.events)["unaccounted"] == 1


def test_steps_in_a_row_are_as_one(first, second):
    books = run_accounts([step_accounts(first.events), step_accounts(second.events)])
    assert (books["carried_in"], books["carried_out"], books["generated"]) == (0, 0, 125)
    assert (books["trained"], books["audited"], books["unaccounted"]) == (30, 10, 0)
