"""False kills, and what was kept against all that started."""

import pytest
from tests.helpers.events import Log, member

from untail.observe.fates import Fates
from untail.observe.interval import wilson


def fates_of(log: Log) -> Fates:
    fates = Fates()
    for event in log.events:
        fates.hear(event)
    return fates


def test_false_kills_per_reason():
    log = Log()
    for number in range(6):
        log.start(f"a{number}", 0)
    for number in range(4):
        log.stop(f"a{number}", 1, 10, "loop", audited=number < 3)
    log.stop("a4", 1, 10, "babble")
    log.cancel("a5", 1, 10, audited=True)
    log.audit("a0", 5, "loop", 40, 30, 1.0)
    log.audit("a1", 5, "loop", 40, 30, 0.0)  # a2 is still being audited
    log.audit("a5", 5, "cancelled", 40, 30, 1.0)  # nobody blamed it
    assert fates_of(log).false_kills() == {
        "babble": {"stopped": 1, "audited": 0, "false": 0, "rate": None, "ci95": None},
        "loop": {"stopped": 4, "audited": 2, "false": 1, "rate": 0.5, "ci95": list(wilson(0.5, 2))},
    }


def test_the_audited_stand_for_the_rest():
    log = Log()
    log.whole("a0", 0, 1, 10, 1.0)
    log.whole("a1", 0, 1, 20, 0.0)
    log.whole("b0", 0, 1, 30, 1.0)  # came to its end, but its group is not kept
    for name in ("a2", "a3", "b1", "b2"):
        log.start(name, 0)
    log.cancel("a2", 2, 15)
    log.cancel("a3", 2, 15, audited=True)
    log.stop("b1", 2, 15, "loop")
    log.cancel("b2", 2, 15)
    log.cancel("b3", 2, 0)  # never started
    log.train(3, member("a0", 10, 1.0), member("a1", 20, 0.0))
    log.audit("a3", 9, "cancelled", 100, 85, 0.5)
    assert fates_of(log).kept_vs_all() == {
        "kept_len": 15.0,
        "kept_reward": 0.5,
        "all_len": pytest.approx((10 + 20 + 30 + 4 * 100) / 7),
        "all_reward": pytest.approx((1 + 0 + 1 + 4 * 0.5) / 7),
    }


def test_without_an_audit_nothing_is_known_of_all():
    log = Log()
    log.whole("a0", 0, 1, 10, 1.0)
    log.start("a1", 0)
    log.train(3, member("a0", 10, 1.0))
    assert fates_of(log).kept_vs_all()["all_len"] == 10  # what is still under way is not missed yet
    log.cancel("a1", 2, 15)
    assert fates_of(log).kept_vs_all() == {"kept_len": 10, "all_len": None, "kept_reward": 1, "all_reward": None}


def test_a_stopped_member_is_not_kept_though_it_is_trained():
    log = Log()
    log.whole("a0", 0, 1, 10, 1.0)
    log.start("a1", 0)
    log.stop("a1", 2, 15, "loop", audited=True)
    log.train(3, member("a0", 10, 1.0), member("a1", 15, -1.0, "stopped"))
    log.audit("a1", 4, "loop", 50, 35, 0.0)
    figures = fates_of(log).kept_vs_all()
    assert figures == {"kept_len": 10, "all_len": 30, "kept_reward": 1.0, "all_reward": 0.5}
