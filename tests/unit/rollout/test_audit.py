"""Who is audited, and when a reason is switched off."""

import json

from untail.observe.interval import wilson
from untail.rollout.audit import CANCELLED, Audit

NAMES = [f"g{n:08}/{m}" for n in range(500) for m in range(4)]


def test_whether_one_is_audited_depends_on_its_name_and_the_seed():
    chosen = [name for name in NAMES if Audit(0.05, 0.1, seed=1).chooses(name)]
    assert chosen == [name for name in NAMES if Audit(0.05, 0.1, seed=1).chooses(name)]
    assert chosen != [name for name in NAMES if Audit(0.05, 0.1, seed=2).chooses(name)]


def test_the_share_of_the_audited():
    audit = Audit(0.05, 0.1, seed=1)
    assert 70 < sum(map(audit.chooses, NAMES)) < 130  # 100 are expected, with a standard deviation of 10
    assert not any(map(Audit(0.0, 0.1, seed=1).chooses, NAMES))
    assert all(map(Audit(1.0, 0.1, seed=1).chooses, NAMES))
    # Whoever is chosen at a low share is chosen at a higher one: a recipe that audits more hears more, not others.
    assert {n for n in NAMES if audit.chooses(n)} <= {n for n in NAMES if Audit(0.2, 0.1, seed=1).chooses(n)}


def test_a_reason_is_off_once_its_rate_is_surely_too_high():
    """3 of 8 are too many, but not surely with a bound of 0.15; 4 of 9 are."""
    audit = Audit(1.0, 0.15, seed=0)
    for rewarded in (False, False, False, False, False, True, True, True):
        verdicts = audit.hear("loop", rewarded)
    assert (verdicts.audited, verdicts.rewarded, verdicts.low(0)) == (8, 3, wilson(3 / 8, 8)[0])
    assert verdicts.low(0) < 0.15
    assert audit.off == set()
    assert audit.hear("loop", True).low(0) > 0.15
    assert audit.off == {"loop"}


def test_a_good_watcher_stays_on():
    audit = Audit(1.0, 0.1, seed=0)
    for number in range(1000):
        audit.hear("loop", number % 20 == 19)
    assert audit.off == set()


def test_reasons_are_judged_apart_and_the_cancelled_not_at_all():
    audit = Audit(1.0, 0.1, seed=0)
    for _ in range(20):
        audit.hear("loop", True)
        audit.hear("collapse", False)
        audit.hear(CANCELLED, True)
    assert audit.off == {"loop"}


def test_it_goes_on_after_a_checkpoint():
    audit, fresh = Audit(1.0, 0.4, seed=0), Audit(1.0, 0.4, seed=0)
    for _ in range(4):
        audit.hear("loop", True)
        audit.hear("collapse", False)
    fresh.restore(json.loads(json.dumps(audit.state())))
    assert fresh.state() == audit.state()
    assert fresh.hear("loop", True) == audit.hear("loop", True)
    assert fresh.off == audit.off == {"loop"}
