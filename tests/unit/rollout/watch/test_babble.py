"""The babble watcher, on both sides of its bound."""

import math

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.points import MECHANISMS, Verdict
from untail.rollout.watch import babble  # noqa: F401  (registers)

STOP = Verdict("stop", "babble", "penalty")
LIMIT = 0.7 * math.log(1000)  # 4.835 nats


def build(**fields):
    return MECHANISMS.build({"name": "babble", **fields}, "mechanisms.babble")


def look(*stretches: tuple[int, float], vocab: int = 1000, **fields) -> Verdict | None:
    """After so many tokens with such an entropy, in order."""
    member = make_group().members[0]
    for tokens, entropy in stretches:
        write(member, [1] * tokens, entropy=entropy)
    return build(**fields).look(member, FakeView(vocab=vocab))


def test_mean_entropy_must_be_above_the_bound():
    assert look((256, LIMIT - 0.001)) is None
    assert look((256, LIMIT + 0.001)) == STOP
    assert look((128, 2 * LIMIT + 0.01), (128, 0.0)) == STOP
    assert look((128, 2 * LIMIT - 0.01), (128, 0.0)) is None
    assert look((256, 0.0), share=0.0) is None  # above, not at


def test_the_bound_follows_the_vocabulary_and_the_share():
    assert look((256, LIMIT + 0.001), vocab=1010) is None
    assert look((256, LIMIT + 0.001), share=0.71) is None


def test_a_response_shorter_than_the_window_is_let_be():
    assert look((255, 6.0)) is None


def test_only_the_window_counts():
    assert look((1000, 0.0), (256, 6.0)) == STOP
    assert look((1000, 6.0), (256, 0.0)) is None


def test_the_rule_for_its_reward_is_a_field():
    assert look((256, 6.0), stopped="zero") == Verdict("stop", "babble", "zero")


def test_it_needs_entropies():
    assert build().needs_entropy


@pytest.mark.parametrize(("field", "value"), [("window", 0), ("share", 1.1)])
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.babble\.{field} = "):
        build(**{field: value})
