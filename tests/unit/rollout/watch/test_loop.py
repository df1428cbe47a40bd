"""The loop watcher, on both sides of each of its bounds."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.points import MECHANISMS, Verdict
from untail.rollout.watch import loop  # noqa: F401  (registers)

STOP = Verdict("stop", "loop", "penalty")


def build(**fields):
    return MECHANISMS.build({"name": "loop", **fields}, "mechanisms.loop")


def look(tokens: list[int], **fields) -> Verdict | None:
    return build(**fields).look(write(make_group().members[0], tokens), FakeView())


def after_new_text(ending: list[int], length: int = 256) -> list[int]:
    """`ending`, after tokens of which none is like another."""
    return [*range(1000, 1000 + length - len(ending)), *ending]


def test_new_text_is_no_loop():
    assert look(after_new_text([])) is None
    assert look(after_new_text([]), share=0.0) is None  # above, not at


def test_a_cycle_of_four_is_a_loop_and_of_three_is_not():
    cycle = list(range(20))
    assert look(after_new_text(cycle * 3)) is None
    assert look(after_new_text(cycle * 4)) == STOP


def test_the_longest_period():
    """Both repeat 0.74 of their runs: with a higher bound for these, the cycle decides."""
    assert look(list(range(64)) * 4, share=0.8) == STOP
    assert look(list(range(65)) * 4, share=0.8) is None


def test_a_few_equal_tokens_are_no_loop():
    assert look(after_new_text([0] * 63)) is None
    assert look(after_new_text([0] * 64)) == STOP
    assert look(after_new_text([0] * 4), cycle_tokens=4) == STOP


def test_repeated_runs_without_a_cycle():
    """253 runs of four: 151 are 0.597 of them, 152 are 0.601. Of n equal tokens n - 4 runs are repeated; new tokens
    after them break the cycle."""
    assert look(after_new_text([7] * (151 + 4) + [1, 2, 3, 4])) is None
    assert look(after_new_text([7] * (152 + 4) + [1, 2, 3, 4])) == STOP


def test_a_response_shorter_than_the_window_is_let_be():
    assert look([7] * 255) is None
    assert look([7] * 256) == STOP


def test_only_the_window_counts():
    assert look([7] * 1000 + after_new_text([])) is None


def test_the_rule_for_its_reward_is_a_field():
    assert look([7] * 256, stopped="mask") == Verdict("stop", "loop", "mask")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("period", 0),
        ("repeats", 0),
        ("cycle_tokens", 0),
        ("ngram", 0),
        ("share", 1.1),
        ("stopped", "no"),
    ],
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.loop\.{field} = "):
        build(**{field: value})


@pytest.mark.parametrize(
    ("fields", "least"),
    [({"period": 65}, 260), ({"repeats": 5}, 320), ({"cycle_tokens": 257}, 257), ({"ngram": 300}, 300)],
)
def test_a_window_that_cannot_hold_what_it_looks_for_is_refused(fields, least):
    build().check(8, 64)
    with pytest.raises(ConfigError, match=rf"mechanisms\.loop\.window = 256 .* at least {least}"):
        build(**fields).check(8, 8192)
