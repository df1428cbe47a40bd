"""A step's drafts go where they are most likely accepted."""

import itertools
import random

import pytest

from untail.draft.budget import Acceptance, spread


def worth(given, acceptances) -> float:
    """Drafts that will be accepted, in the mean."""
    return sum(sum(a**j for j in range(1, count + 1)) for count, a in zip(given, acceptances, strict=True))


def test_against_every_way_to_spend_them():
    rng = random.Random(0)
    for _ in range(60):
        size = rng.randint(1, 4)
        acceptances, most = [rng.random() for _ in range(size)], [rng.randint(0, 4) for _ in range(size)]
        total = rng.randint(0, 8)
        given = spread(total, acceptances, most)
        assert sum(given) == min(total, sum(most))
        ways = itertools.product(*(range(m + 1) for m in most))
        best = max(worth(way, acceptances) for way in ways if sum(way) <= total)
        assert worth(given, acceptances) == pytest.approx(best)


def test_equals_share():
    assert spread(6, [0.5, 0.5, 0.5], [9, 9, 9]) == [2, 2, 2]
    assert spread(7, [0.5, 0.5, 0.5], [9, 9, 9]) == [3, 2, 2]


def test_certainty_takes_all_and_hopelessness_nothing():
    assert spread(8, [1.0, 0.0], [32, 32]) == [8, 0]


def test_an_estimate_follows_what_is_seen():
    acceptance = Acceptance()
    acceptance.begin("a")
    acceptance.begin("b")
    assert acceptance.of("a") == acceptance.of("b")
    assert acceptance.recent is None
    for _ in range(30):
        acceptance.heard("a", 4, 4)
        acceptance.heard("b", 4, 0)
    assert acceptance.of("a") > 0.95
    assert acceptance.of("b") < 0.05
    for _ in range(60):
        acceptance.heard("a", 4, 0)
    assert acceptance.of("a") < 0.05
    acceptance.end("a")
    acceptance.heard("a", 4, 4)  # its last step: it is gone already


def test_drafts_behind_a_wrong_one_are_not_held_against_anybody():
    acceptance = Acceptance()
    acceptance.begin("a")
    for _ in range(100):
        acceptance.heard("a", 32, 4)
    assert acceptance.of("a") == pytest.approx(4 / 5, abs=0.01)
