"""The recital watcher, on both sides of each of its bounds."""

import math

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Verdict
from untail.rollout.watch import recital  # noqa: F401  (registers)

STOP = Verdict("stop", "recital", "penalty")


def build(**fields):
    return MECHANISMS.build({"name": "recital", **fields}, "mechanisms.recital")


def wrote(*stretches: tuple[list[int], float]) -> Member:
    """Tokens and the probability that each of them had."""
    member = make_group().members[0]
    for tokens, p in stretches:
        write(member, tokens, logprob=math.log(p))
    return member


def look(member: Member, **fields) -> Verdict | None:
    return build(**fields).look(member, FakeView())


@pytest.mark.parametrize(("p", "verdict"), [(0.99, None), (0.9901, STOP), (1.0, STOP)])
def test_every_token_must_be_certain(p, verdict):
    assert look(wrote(([1] * 256, p))) == verdict


def test_one_doubt_is_enough_until_it_is_out_of_the_window():
    assert look(wrote(([1], 0.5), ([1] * 255, 1.0))) is None
    assert look(wrote(([1], 0.5), ([1] * 256, 1.0))) == STOP
    assert look(wrote(([1] * 256, 1.0), ([1], 0.5))) is None


def test_a_response_shorter_than_the_window_is_let_be():
    assert look(wrote(([1] * 255, 1.0))) is None


def test_an_answer_that_has_begun_may_be_certain():
    begun = wrote(([3, 8, 8, 9, 4], 0.5), ([1] * 256, 1.0))
    assert look(begun, marker_ids=[8, 9]) is None  # also after a false start
    assert look(begun, marker_ids=[8, 4]) == STOP
    assert look(begun, marker_ids=[9, 8]) == STOP
    assert look(begun) == STOP


def test_a_marker_counts_anywhere_and_only_whole():
    assert look(wrote(([1] * 254 + [8, 9], 1.0)), marker_ids=[8, 9]) is None
    assert look(wrote(([1] * 255 + [8], 1.0)), marker_ids=[8, 9]) == STOP
    assert look(wrote(([8, 9] + [1] * 254, 1.0)), marker_ids=[8, 9]) is None


def test_the_rule_for_its_reward_is_a_field():
    assert look(wrote(([1] * 256, 1.0)), stopped="zero") == Verdict("stop", "recital", "zero")


@pytest.mark.parametrize(("field", "value"), [("window", 0), ("p", 1.0), ("p", 0), ("marker_ids", "answer")])
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.recital\.{field} = "):
        build(**{field: value})


def test_ids_are_not_negative():
    assert look(wrote(([0] * 256, 1.0)), marker_ids=[0]) is None
    with pytest.raises(ConfigError, match=r"mechanisms\.recital\.marker_ids\.1 = -2"):
        build(marker_ids=[1, -2])
