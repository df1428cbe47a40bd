"""While its environment is at work, a member holds no slot; what becomes of it when a step closes."""

import asyncio

import pytest
from tests.helpers.rig import Rig, Step, by, lengths
from tests.helpers.rollout import make_group, make_prompt
from tests.helpers.scripted import Script
from tests.helpers.tiny import closes, refills, stops, strides, talks

from untail.backends.virtual_loop import run_virtual
from untail.observe.metrics import step_metrics
from untail.observe.step import StepEvents
from untail.rollout.live import Member, State, copy_of
from untail.rollout.points import GroupPoint, Mechanism
from untail.types import Trajectory

ONE_GROUP = {"prompts": 1, "group": 2}


def times(step: Step, label: str) -> list[tuple[str, float]]:
    return [(event["e"], event["t"]) for event in step.of(label) if event["e"] not in ("score",)]


def metrics(step: Step, slots: int) -> dict:
    return step_metrics(step.events, slots)


def test_a_tool_of_200_ms_keeps_no_slot():
    """There is one slot: the other member runs in it while the first one's environment is at work."""
    rig = Rig(lengths(default=4), slots=1, environment=talks(seconds=lambda turn: 0.2, turns=2), **ONE_GROUP)
    step = rig.step()
    assert times(step, "0/0") == [
        *(("start", 0), ("park", 4), ("reply", 4.2)),
        *(("resume", 8), ("end", 12)),  # as soon as there is a slot
    ]
    assert times(step, "0/1") == [("start", 4), ("park", 8), ("reply", 8.2), ("resume", 12), ("end", 16)]
    assert rig.backend.most == 1
    row = metrics(step, 1)
    assert row["slot_bubble"] == pytest.approx(0)
    assert row["tool_wait_s"] == pytest.approx(0.4)
    assert row["turns"] == 2
    assert row["phases"]["rollout_s"] == 16


def test_its_tokens_stay_where_they_are():
    rig = Rig(lengths(default=4), environment=talks(turns=3), **ONE_GROUP)
    step = rig.step()
    assert len(rig.backend.called("generate")) == 2, "one sequence each, over all turns"
    assert [call[2] for call in rig.backend.calls if call[0] == "append"] == [[0, 1, 2]] * 4
    for trajectory in step.trained.values():
        assert "".join("x" if ours else "." for ours in trajectory.from_model) == "xxxx...xxxx...xxxx"
        assert trajectory.tokens == [1, 2, 3, 0, 0, 1, 2, 8, 9, 10, 0, 0, 1, 2, 15, 16, 17, 0]
        assert [segment.why for segment in trajectory.segments] == ["turn", "reply", "turn", "reply", "stop"]
    end = step.of("0/0", "end")[0]
    assert (end["tokens"], end["turns"], end["tool_failure"]) == (12, 3, None)
    assert step.accounts["generated"] == step.accounts["trained"] == 24, "replies are nobody's tokens"


def test_while_nothing_but_a_tool_is_waited_for():
    step = Rig(lengths(default=4), environment=talks(seconds=lambda turn: 5.0, turns=2), **ONE_GROUP).step()
    row = metrics(step, 64)
    assert row["phases"]["rollout_s"] == pytest.approx(8)
    assert row["phases"]["tool_s"] == pytest.approx(5)
    assert row["phases"]["idle_s"] == pytest.approx(0)


def test_its_budget_is_for_all_turns():
    step = Rig(lengths(default=4), environment=talks(turns=9), max_tokens=10, **ONE_GROUP).step()
    for trajectory in step.trained.values():
        assert (trajectory.length, trajectory.turns, trajectory.end) == (10, 3, "length")


def test_a_budget_that_is_used_up_asks_nobody():
    step = Rig(lengths(default=4), environment=talks(turns=9), max_tokens=8, **ONE_GROUP).step()
    for trajectory in step.trained.values():
        assert (trajectory.length, trajectory.turns, trajectory.end) == (8, 2, "stop")
    assert len(step.all("park")) == 2


@pytest.mark.parametrize("in_place", [True, False])
def test_segments_and_turns(in_place):
    scripts = by(lambda prompt, member: Script(6, later=5))
    step = Rig(scripts, {}, strides(4, in_place), environment=talks(turns=2), **ONE_GROUP).step()
    for trajectory in step.trained.values():
        assert [(segment.begin, segment.end, segment.why) for segment in trajectory.segments] == [
            *((0, 4, "boundary"), (4, 6, "turn"), (6, 9, "reply")),
            *((9, 13, "boundary"), (13, 14, "stop")),
        ]


def test_what_replies_goes_ahead_of_new_work():
    rig = Rig(lengths(default=4), slots=2, prompts=2, group=2, environment=talks(seconds=lambda t: 1.0, turns=2))
    step = rig.step()
    assert step.who("start", "resume") == ["0/0", "0/1", "1/0", "1/1", "0/0", "0/1", "1/0", "1/1"]


def test_group_decisions_wait_for_the_parked():
    asked = []

    class Asks(Mechanism, GroupPoint):
        def decide(self, group, view):
            asked.extend(member.state for member in group.open)
            return {}

    scripts = by(lambda prompt, member: Script(6 if member else 3))
    rig = Rig(scripts, {}, Asks, strides(4), environment=talks(seconds=lambda t: 9.0, turns=2), **ONE_GROUP)
    rig.step()
    assert set(asked) == {State.WAITING}


# ---- faults ------------------------------------------------------------------------------------------------------


def bad_first_prompt(fault):
    """The environment does it to the first prompt's trajectories only."""

    def reply(turn):
        if turn.prompt.tokens[0] != 0:
            return "abc"
        return fault()

    return reply


def raises():
    raise OSError("no disk")


FAULTS = {
    "raises": (raises, "raised: OSError: no disk"),
    "gives a number": (lambda: 3.5, "not a string: float"),
    "gives odd tokens": (lambda: "\u00ff" * 3, "outside the vocabulary: token 158 of 100"),
    "says too much": (lambda: "a" * 1000, "too long: 1008 tokens with the reply in a context of 1000"),
    "ends it": (lambda: None, None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_its_own_trajectory_its_turns(fault):
    does, reason = FAULTS[fault]
    step = Rig(lengths(default=4), environment=talks(bad_first_prompt(does), turns=2)).step()
    ends = {step.label(end["id"]): (end["turns"], end["tool_failure"], end["tokens"]) for end in step.all("end")}
    assert ends == {
        **{f"0/{number}": (1, reason, 4) for number in range(2)},
        **{f"1/{number}": (2, None, 8) for number in range(2)},
    }
    kinds = {} if reason is None else {reason.partition(":")[0]: 2}
    assert metrics(step, 64)["tool_failures"] == kinds
    assert len(step.trained) == 4, "it is scored with what it has"


def test_a_hanging_tool_is_cut_by_its_limit():
    def seconds(turn):
        return 1e6 if turn.prompt.tokens[0] == 0 else 1.0

    step = Rig(lengths(default=4), environment=talks(seconds=seconds, turns=2, time_limit_s=7.0)).step()
    assert times(step, "0/0") == [("start", 0), ("park", 4), ("end", 11)]
    (end,) = step.of("0/0", "end")
    assert (end["tool_failure"], end["tool_s"], end["end"]) == ("timeout", 7, "stop")
    assert times(step, "1/0")[-1] == ("end", 9)


def test_an_engine_that_fails_while_it_is_parked():
    def scripts(prompt, member):
        return Script(4, fails_at=5 if prompt == 0 and member == 0 else None)

    step = Rig(scripts, environment=talks(seconds=lambda t: 1.0, turns=2), group=3).step()
    assert step.who("fail") == ["0/0"]
    assert len(step.trained) == 5


# ---- when a step closes ------------------------------------------------------------------------------------------


def closing(what: str, seconds: float = 100.0, **more) -> Rig:
    """After 20 s; the environment of the second prompt is slow."""
    slow = talks(latency=lambda turn: seconds * (turn.prompt.tokens[0] == 1), turns=2, time_limit_s=500.0)
    return Rig(lengths(default=4), {}, closes(20, what), environment=slow, **more)


@pytest.mark.parametrize("what", ["close", "cancel"])
def test_what_is_parked_is_cancelled_like_what_runs(what):
    step = closing(what).step()
    assert step.who("cancel") == ["1/0", "1/1"]
    assert step.accounts["cancelled"] == 8
    assert set(step.trained) == {"0/0", "0/1"}
    assert step.seconds == 20


def test_an_audit_plays_the_turns_of_what_was_cancelled():
    """Its latency goes on for the ghost: 16 s of 30 s in the first step, then 8 s a step."""
    steps = closing("cancel", seconds=30.0, audit=1.0).run(4)
    assert [event["audited"] for event in steps[0].all("cancel")] == [True, True]
    assert [len(step.all("audit")) for step in steps] == [0, 0, 0, 2]
    assert [(event["tokens"], event["extra"]) for event in steps[3].all("audit")] == [(8, 4), (8, 4)]
    assert [event["seconds"] for event in steps[2].of("1/0", "reply")] == [30]


def test_what_is_parked_goes_on_in_the_next_step():
    """Its latency stands still in between: 16 s of 100 s passed in the first step."""
    rig = closing("defer", max_staleness=20)
    steps = rig.run(6)
    assert not steps[0].who("cancel")
    assert not steps[0].who("defer"), "it left its slot before"
    step = next(step for step in steps if "1/0" in step.who("reply"))
    (reply,) = step.of("1/0", "reply")
    assert (reply["seconds"], reply["t"]) == (100, 104)
    assert step.trained["1/0"].version == [0] * 4 + [step.number - 1] * 7


def test_a_tool_that_is_at_work_when_a_step_closes_is_not_asked_again():
    asked = []

    def seconds(turn):
        asked.append((turn.prompt.tokens[0], turn.number))
        return 100.0 if turn.prompt.tokens[0] == 1 else 0.0

    slow = talks(seconds=seconds, turns=2, time_limit_s=500.0)
    rig = Rig(lengths(default=4), {}, closes(20, "defer"), environment=slow, max_staleness=20)
    steps = rig.run(6)
    assert "1/0" in [name for step in steps for name in step.who("reply")]
    assert asked.count((1, 1)) == 2, "once for each member"


def test_a_step_waits_for_a_parked_group_that_would_be_too_stale():
    steps = closing("defer", max_staleness=1).run(3)
    assert [step.seconds for step in steps][:2] == [20, 88], "until it has its reply, and has gone on"
    assert "1/0" in steps[1].trained


def test_a_rollout_that_is_let_go_leaves_no_tool_behind():
    async def run():
        rig = Rig(lengths(default=4), {}, closes(5, "defer"), environment=talks(seconds=lambda t: 1e5), prompts=1)
        before = asyncio.all_tasks()
        with pytest.raises(Exception, match="no group of this step"):
            await rig.roll_out()
        assert rig.stage.parked
        await rig.close()
        assert asyncio.all_tasks() == before

    run_virtual(run())


# ---- watchers and mechanisms across turns ------------------------------------------------------------------------


def test_a_watcher_looks_at_the_end_of_a_turn_too():
    """Turns are shorter than its pace: it would never see one otherwise."""
    rig = Rig(lengths(default=4), {}, stops(8), environment=talks(turns=5), watch_every=64, patience=1, **ONE_GROUP)
    step = rig.step()
    assert [(event["tokens"], event["segments"]) for event in step.all("stop")] == [(8, 2), (8, 2)]
    assert all(trajectory.end is None for trajectory in step.trained.values())


def test_one_that_was_stopped_at_the_end_of_a_turn_is_audited_to_the_end_of_its_last():
    rig = Rig(lengths(default=4), {}, stops(8), environment=talks(turns=5), patience=1, audit=1.0, max_false_kills=1.0)
    steps = rig.run(4)
    audits = [event for step in steps for event in step.all("audit")]
    assert audits
    assert {(event["tokens"], event["extra"], event["reward"]) for event in audits} == {(20, 12, 1.0)}


@pytest.mark.parametrize(
    "tables",
    [
        {"oversample": {"rate": 0.4}},
        {"oversample": {"rate": 0.4, "rest": "defer"}},
        {"deadline": {"share": 0.5}},
        {"fixed": {"segments": 5}, "defer": {}},
        {"remainder": {}, "compaction": {}, "defer": {}},
        {"tail_batch": {}},
    ],
)
@pytest.mark.parametrize("audit", [0.0, 1.0])
def test_mechanisms_work_across_turns(tables, audit):
    """The rig checks every step: books, slots, tokens, and that nobody is lost."""
    slow = talks(
        reply=lambda turn: "abc" if turn.stream % 4 else None, latency=lambda turn: (turn.stream % 9) ** 2 / 2, turns=4
    )
    scripts = by(lambda prompt, member: Script((3, 5, 8, 13)[(prompt + member) % 4], later=2 + member))
    stop = stops(12, who=lambda prompt, member: (prompt + member) % 3 == 0)
    rig = Rig(scripts, tables, stop, environment=slow, slots=5, prompts=4, group=4, audit=audit, patience=2,
              watch_every=4, max_false_kills=1.0, max_tokens=40)  # fmt: skip
    steps = rig.run(6)
    assert max(trajectory.turns for step in steps for trajectory in step.trained.values()) > 2


def test_free_slots_get_new_work_while_others_are_parked():
    slow = talks(latency=lambda turn: 50.0 if turn.prompt.tokens[0] == 0 else 0.0, turns=2, time_limit_s=99.0)
    rig = Rig(lengths(default=4), {"defer": {}}, refills(1), environment=slow, slots=2, prompts=2)
    step = rig.step()
    assert len(set(step.groups("admit"))) > 2
    assert step.seconds < 50


def test_replies_take_room_from_what_is_still_to_come():
    """The engine holds 16 tokens of a sequence: 4 of the prompt, a turn of 4 and a reply of 3 leave 5 of 100."""
    tool = talks(turns=3)
    rig = Rig(by(lambda p, m: Script(4, later=50)), environment=tool, context=16, **ONE_GROUP)
    step = rig.step()
    assert {(event["tokens"], event["end"], event["turns"]) for event in step.all("end")} == {(9, "length", 2)}


def test_waits_of_other_steps_and_of_ghosts():
    """Parked over the end of a step, it waits from the next one's begin, also if its environment then says no more."""
    seconds = lambda turn: 6.0 if turn.prompt.tokens[0] == 1 else 0.0
    tool = talks(lambda turn: None, seconds=seconds, turns=2, time_limit_s=99.0)
    rig = Rig(lengths(default=4), {}, closes(6, "defer"), environment=tool)
    first, second = rig.run(2)
    begins = second.one("step")
    assert "parked" not in first.one("step")
    ends = [event["t"] for event in second.all("end") if event["id"] in begins["parked"]]
    assert len(ends) == 2
    assert {(begin, end) for begin, end in StepEvents(second.events).tool_spans()} >= {(begins["t"], t) for t in ends}


def test_a_copy_has_not_waited_itself():
    member = Member(Trajectory("0/0", make_prompt(), 0), make_group(), 0)
    member.tool_s = 3.0
    assert copy_of(member, 1, id="0/1").tool_s == 0.0
