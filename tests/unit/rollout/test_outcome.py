"""What members get in the end, and what history keeps."""

import pytest
from tests.helpers.rollout import finish, make_group, make_plan, make_prompt, write

from untail.rollout.live import LiveGroup, State
from untail.rollout.outcome import records_of, settle_rewards


def group_with(*rewards: float, size: int) -> LiveGroup:
    """The first members have finished with these rewards."""
    group = make_group(make_plan(make_prompt(), size, budget=100))
    for member, reward in zip(group.members, rewards, strict=False):
        finish(member, 10, reward)
    return group


def stop(member, rule: str, tokens: int = 5):
    write(member, [1] * tokens)
    member.trajectory.reward = 7.0  # never its own
    member.trajectory.stopped, member.state, member.rule = "loop", State.DONE, rule
    return member


@pytest.mark.parametrize(
    ("rule", "reward", "masked"),
    [("penalty", -1.0, False), ("zero", 0.0, False), ("group_min", 0.5, False), ("mask", -1.0, True)],
)
def test_each_rule(rule, reward, masked):
    group = group_with(0.5, 0.75, size=3)
    stopped = stop(group.members[2], rule).trajectory
    settle_rewards(group)
    assert (stopped.reward, stopped.masked) == (reward, masked)
    assert [member.trajectory.reward for member in group.members[:2]] == [0.5, 0.75]


def test_the_lowest_of_a_group_is_of_those_that_ended_by_themselves():
    group = group_with(0.5, 0.75, size=4)
    penalty, lowest = stop(group.members[2], "penalty"), stop(group.members[3], "group_min")
    settle_rewards(group)
    assert (penalty.trajectory.reward, lowest.trajectory.reward) == (-1.0, 0.5)


def test_the_lowest_may_be_below_zero_and_of_nobody_is_zero():
    group = group_with(-0.1, 0.75, size=3)
    assert (stop(group.members[2], "group_min"), settle_rewards(group))[0].trajectory.reward == -0.1
    group = group_with(size=2)
    stopped = [stop(member, "group_min").trajectory for member in group.members]
    settle_rewards(group)
    assert [trajectory.reward for trajectory in stopped] == [0.0, 0.0]


def test_whoever_is_gone_has_no_say():
    group = group_with(0.5, 0.75, -3.0, size=4)
    group.members[2].state = State.GONE
    stopped = stop(group.members[3], "group_min")
    settle_rewards(group)
    assert stopped.trajectory.reward == 0.5


def test_records():
    group = group_with(1.0, size=7)
    done, stopped, gone, unseen, short, longest, failed = group.members
    stop(stopped, "penalty", tokens=5)
    write(gone, [1] * 6).state = State.GONE
    unseen.state = State.GONE
    for member, tokens in ((short, 50), (longest, 100)):
        finish(member, tokens).trajectory.end = "length"
    finish(failed, 9).trajectory.failure = "timeout"
    settle_rewards(group)
    records = records_of(group, step=4, longest=100)
    assert [(r.length, r.end, r.reward, r.is_bound) for r in records] == [
        (10, "stop", 1.0, False),
        (5, "loop", None, True),
        (6, "abort", None, True),
        (50, "length", 0.0, True),  # others of its prompt may have more
        (100, "length", 0.0, False),  # nothing can be longer
        (9, "stop", None, False),  # what it is worth is not known
    ]
    assert [r.tokens is not None for r in records] == [True, False, False, True, True, True]
    assert records[0].tokens == tuple(done.trajectory.tokens)
    assert {(r.prompt, r.task, r.step, r.version, r.entropy) for r in records} == {
        (group.plan.prompt.id, "test", 4, 0, 0.5)
    }
