"""The collapse watcher, on both sides of each of its bounds."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.points import MECHANISMS, Verdict
from untail.rollout.watch import collapse  # noqa: F401  (registers)

STOP = Verdict("stop", "collapse", "penalty")
SAME = [7] * 128


def build(**fields):
    return MECHANISMS.build({"name": "collapse", **fields}, "mechanisms.collapse")


def look(tokens: list[int], entropy: float, **fields) -> Verdict | None:
    return build(**fields).look(write(make_group().members[0], tokens, entropy), FakeView())


def test_mean_entropy_must_be_below_the_bound():
    assert look(SAME, 0.0199) == STOP
    assert look(SAME, 0.02) is None
    assert look(SAME, 0.5) is None


def test_it_is_the_mean_that_counts():
    member = make_group().members[0]
    write(write(member, [7] * 127, entropy=0.0), [7], entropy=2.5)  # 2.5 / 128 = 0.0195
    assert build().look(member, FakeView()) == STOP
    write(write(member, [7] * 127, entropy=0.0), [7], entropy=2.6)  # 2.6 / 128 = 0.0203
    assert build().look(member, FakeView()) is None


@pytest.mark.parametrize(("repeated", "verdict"), [(37, None), (38, STOP)])
def test_repeated_runs_must_be_above_their_bound(repeated, verdict):
    """125 runs of four: 37 are 0.296 of them, 38 are 0.304."""
    tokens = [7] * (repeated + 4)
    assert look(tokens + list(range(100, 100 + 128 - len(tokens))), 0.0) == verdict
    assert look(list(range(128)), 0.0, share=0.0) is None  # above, not at


def test_repetition_need_not_be_required():
    assert look(list(range(128)), 0.0) is None
    assert look(list(range(128)), 0.0, require_repetition=False) == STOP
    assert look(list(range(128)), 0.02, require_repetition=False) is None


def test_a_response_shorter_than_the_window_is_let_be():
    assert look([7] * 127, 0.0) is None


def test_only_the_window_counts():
    member = write(make_group().members[0], list(range(1000)), entropy=3.0)
    assert build().look(write(member, SAME, entropy=0.0), FakeView()) == STOP


def test_the_rule_for_its_reward_is_a_field():
    assert look(SAME, 0.0, stopped="group_min") == Verdict("stop", "collapse", "group_min")


def test_it_needs_entropies():
    assert build().needs_entropy


@pytest.mark.parametrize(("field", "value"), [("window", 0), ("entropy", 0), ("ngram", 0), ("share", -0.1)])
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.collapse\.{field} = "):
        build(**{field: value})


def test_runs_longer_than_the_window_are_refused():
    build(ngram=128).check(8, 64)
    with pytest.raises(ConfigError, match=r"ngram = 129 must not exceed .*window = 128"):
        build(ngram=129).check(8, 8192)
