"""Partial scores on their way to a member, and what waits for them. A token takes a second."""

import asyncio

import pytest
from tests.helpers.rig import Rig, lengths
from tests.helpers.tiny import closes, strides, talks

from untail.rewards.scorer import PartialScore
from untail.rollout.controller import Controller
from untail.rollout.points import GroupPoint, Mechanism, Verdict, Watch

ONE = {"prompts": 1, "group": 3, "patience": 1}


class Reader(Mechanism, GroupPoint):
    """Remembers what it saw."""

    wants_partial = True

    def __init__(self, config):
        super().__init__(config)
        self.saw: list[list[float | None]] = []

    def decide(self, group, view):
        self.saw.append([member.partial for member in group.open])
        return {}


class Strict(Mechanism, Watch):
    wants_partial = True

    def look(self, member, view):
        return Verdict("stop", "hopeless") if member.partial == 0.0 else None


def rig(score, *made, scripts=lengths((9, 9, 9)), **more) -> Rig:  # noqa: B008
    made = Rig(scripts, {}, *made, **{**ONE, **more})
    made.controller = Controller(
        list(made.backends), made.slots, made.prompts, made._score, made.config, made.mechanisms, made.history,
        stop_ids=(0,), vocab=100, partial=score, turns=made.stage.turns,
    )  # fmt: skip
    made.stage = made.controller.stage
    return made


async def by_length(trajectory):
    await asyncio.sleep(2.5)
    return PartialScore(len(trajectory.tokens) / 100)


def test_a_group_is_asked_once_the_scores_of_its_present_texts_are_there():
    one = rig(by_length, strides(4), Reader)
    step = one.step()
    assert one.mechanisms.by_name["reader"].saw == [[0.04] * 3, [0.08] * 3]
    assert [event["t"] for event in step.of("0/0", "resume")] == [6.5, 13.0]


def test_a_watcher_sees_the_newest_score():
    async def hopeless_from_6_tokens_on(trajectory):
        return PartialScore(float(len(trajectory.tokens) < 6))

    step = rig(hopeless_from_6_tokens_on, Strict, watch_every=2).step()
    assert {event["tokens"] for event in step.all("stop")} == {8}  # asked about at 6, known at the next look


@pytest.mark.parametrize("how", ["raises", "fails"])
def test_a_score_that_fails_is_named_and_says_nothing(how):
    async def bad(trajectory):
        if how == "raises":
            raise ValueError("no")
        return PartialScore(None, "timeout")

    one = rig(bad, strides(4), Reader)
    step = one.step()
    assert {event["failure"] for event in step.all("partial")} == {
        "raised: ValueError: no" if how == "raises" else "timeout"
    }
    assert one.mechanisms.by_name["reader"].saw == [[None] * 3, [None] * 3]
    assert len(step.trained) == 3


def test_nobody_is_asked_where_nobody_wants_to_know():
    async def never(trajectory):
        raise AssertionError

    assert not rig(never, strides(4)).step().all("partial")


def test_a_step_that_closes_meanwhile_waits_for_the_score_and_no_longer():
    one = rig(by_length, strides(4), Reader, closes(5.0, "defer"), pool=1)
    with pytest.raises(Exception, match="no group of this step can be trained"):
        one.step()
    assert one.mechanisms.by_name["reader"].saw == []


def test_the_score_of_one_turn_says_nothing_about_the_next():
    """The first turn is hopeless; its score comes while the member is parked, and the second turn is fine."""

    async def slow(trajectory):
        turn = trajectory.turns
        await asyncio.sleep(1.0)
        return PartialScore(float(turn > 1))

    two_turns = talks(turns=2)
    step = rig(slow, Strict, scripts=lengths(default=4), watch_every=2, patience=5, environment=two_turns).step()
    assert [event["turns"] for event in step.all("end")] == [2, 2, 2]
    assert not step.all("stop")


def test_a_step_that_closes_waits_for_scores_on_their_way():
    async def slow(trajectory):
        await asyncio.sleep(5.0)
        return PartialScore(0.5)

    one = rig(slow, Strict, closes(5, "defer"), scripts=lengths((3, 3, 3), default=9), watch_every=2, prompts=2)
    one.run(1)
    members = [member for group in one.stage.pool.live.values() for member in group.members]
    assert len(members) == 3
    assert {(member.partial, member.partial_due) for member in members} == {(0.5, False)}
