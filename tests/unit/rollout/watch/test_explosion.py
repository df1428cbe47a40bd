"""The explosion watcher, on both sides of each of its bounds."""

import pytest
from tests.helpers.rollout import FakeView, finish, make_group, make_plan, make_prompt, write
from tests.unit.history.helpers import bound, record

from untail.errors import ConfigError
from untail.rollout.live import State
from untail.rollout.points import MECHANISMS, Verdict
from untail.rollout.watch import explosion  # noqa: F401  (registers)

PROMPT = make_prompt(0)
STOP = Verdict("stop", "explosion", "penalty")


def build(**fields):
    return MECHANISMS.build({"name": "explosion", **fields}, "mechanisms.explosion")


def look(length: int, finished: list[int], past=(90, 110), size: int = 4, **fields) -> Verdict | None:
    """One member of `size` has `length` tokens, others have finished. The past has mean 100 and std 14.14: the bound is
    at 142.4 tokens."""
    view, group = FakeView(), make_group(make_plan(PROMPT, size))
    if past:
        view.history.add([record(length, PROMPT.id) for length in past])
    for member, tokens in zip(group.members[1:], finished, strict=False):
        finish(member, tokens)
    return build(**fields).look(write(group.members[0], [1] * length), view)


def test_longer_than_its_history():
    assert look(142, [50, 50]) is None
    assert look(143, [50, 50]) == STOP
    assert look(142, [50, 50], stds=2.9) == STOP
    assert look(100, [40, 40], past=(100, 100)) is None  # longer, not as long
    assert look(101, [40, 40], past=(100, 100)) == STOP


def test_half_of_the_group_has_finished():
    assert look(500, [50]) is None
    assert look(500, [50, 50]) == STOP
    assert look(500, [50, 50], size=5) is None
    assert look(500, [50, 50, 50], size=5) == STOP
    assert look(500, [50] * 17, size=35) is None
    assert look(500, [50] * 18, size=35) == STOP


def test_twice_the_mean_of_those_that_finished():
    assert look(200, [90, 110]) is None
    assert look(201, [90, 110]) == STOP
    assert look(201, [90, 110], times=2.1) is None


def test_the_mean_of_the_past_moves_with_its_ema():
    """Groups of mean 100 and 300: the EMA is 200, the std of all four 116.05, the bound 548.1."""
    view, group = FakeView(), make_group(make_plan(PROMPT, 2))
    for past in [(90, 110), (290, 310)]:
        view.history.add([record(length, PROMPT.id) for length in past])
    finish(group.members[1], 100)
    member = write(group.members[0], [1] * 548)
    assert build().look(member, view) is None
    assert build().look(write(member, [1]), view) == STOP


def test_stopped_members_have_not_finished_and_gone_ones_are_not_there():
    group = make_group(make_plan(PROMPT, 4))
    view = FakeView()
    view.history.add([record(length, PROMPT.id) for length in (90, 110)])
    for member in group.members[1:3]:
        finish(member, 50)
    write(group.members[0], [1] * 500)
    group.members[1].trajectory.stopped = "loop"
    assert build().look(group.members[0], view) is None
    group.members[1].state = group.members[3].state = State.GONE
    assert build().look(group.members[0], view) == STOP


def test_without_two_finished_lengths_there_is_no_std():
    assert look(500, [50, 50], past=()) is None
    assert look(500, [50, 50], past=(100,)) is None
    assert look(500, [50, 50], past=(100, 100)) == STOP
    view, group = FakeView(), make_group(make_plan(PROMPT, 2))
    view.history.add([bound(10, prompt=PROMPT.id), bound(10, prompt=PROMPT.id)])
    finish(group.members[1], 50)
    assert build().look(write(group.members[0], [1] * 500), view) is None


def test_the_rule_for_its_reward_is_a_field():
    assert look(500, [50, 50], stopped="mask") == Verdict("stop", "explosion", "mask")


@pytest.mark.parametrize(
    ("field", "value"), [("stds", -1), ("min_count", 1), ("finished", 0), ("finished", 1.1), ("times", 0)]
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.explosion\.{field} = "):
        build(**{field: value})
