"""A rollout that was saved, written as JSON and restored goes on exactly as one that was not interrupted."""

import json
import random

import pytest
from tests.helpers.rig import Rig, Step, lengths
from tests.helpers.scripted import Script
from tests.helpers.tiny import closes, routes, stops, talks

from untail.backends.virtual_loop import run_virtual
from untail.rollout import memory
from untail.rollout.live import Route, State
from untail.rollout.points import Mechanism, Move, Place

ALL = 7  # steps
BREAKS = (2, 3, 5)  # after which steps it is broken off


def scripts(prompt: int, member: int) -> Script:
    rng = random.Random(f"{prompt} {member if member < 5 else 'copy'}")  # an engine numbers copies in its own way
    return Script(rng.choice((3, 5, 8, 13, 40)), reward=float(rng.random() < 0.5))


class Swaps(Mechanism, Place):
    """Now and then the longest changes its engine."""

    every = 4.0

    def moves(self, view):
        running = [m for group in view.groups for m in group.members if m.state is State.RUNNING and m.length > 3]
        return [Move(m, 1 - m.engine) for m in sorted(running, key=lambda m: (-m.length, m.id))[:1]]


LANES = routes(lambda member: Route("first" if member.is_new else "later", share=0.75, scale=0.5))
STOPS = stops(6, who=lambda prompt, member: (prompt + member) % 3 == 0)
FORKS = {"group": 5, "audit": 0.5, "slots": 6, "backend": {"by_stream": True}}
TALKS = talks(latency=lambda turn: (turn.stream % 8191) / 512, turns=2, time_limit_s=30.0)
SETTINGS = {
    "grpo": ([], {}, {}),
    "ulorl": ([], {"fixed": {"segments": 5}, "defer": {}}, {}),
    "april": ([], {"oversample": {"rate": 0.4, "rest": "defer"}}, {}),
    "rollpacker": ([], {"tail_batch": {}}, {"prompts": 4, "audit": 0.5}),
    "deadline": ([], {"deadline": {"share": 0.5}}, {"audit": 1.0}),
    "elastic": ([LANES, STOPS], {"remainder": {}, "compaction": {}, "defer": {}}, {"slots": 6}),
    "audit": ([STOPS], {"fixed": {"segments": 10}, "defer": {}}, {"audit": 1.0, "slots": 6}),
    "audit off": ([STOPS], {"fixed": {}, "defer": {}}, {"audit": 1.0, "max_false_kills": 0.1}),
    "unfinished": ([STOPS], {"unfinished": {}, "compaction": {}, "defer": {}}, {"audit": 1.0, "slots": 6}),
    "two engines": ([Swaps], {"order": {}, "fixed": {"segments": 5}, "defer": {}}, {"engines": 2, "slots": 3}),
    "forks": ([], {"fixed": {"segments": 10}, "tournament": {}, "fork": {}, "defer": {}}, FORKS),
    "surplus": ([closes(20, "defer", groups=6)], {}, {}),
    "turns": ([closes(24, "defer", groups=6)], {}, {"environment": TALKS}),
    "turns and audit": ([STOPS], {"fixed": {"segments": 5}, "defer": {}}, {"environment": TALKS, "audit": 1.0}),
}


SMALL = {"prompts": 2, "group": 3, "max_tokens": 50, "watch_every": 2, "patience": 1, "max_false_kills": 1.0}


def make(setting: str, history=None) -> Rig:
    made_here, tables, config = SETTINGS[setting]
    return Rig(scripts, tables, *made_here, history=history, **(SMALL | config))


def events_of(step: Step) -> list[dict]:
    """With times from the step's begin; what an engine computed once more and memory are no part of the promise."""
    began = step.one("step")["t"]
    rows = [{key: value for key, value in e.items() if key not in ("computed", "peak_mem")} for e in step.events]
    return [row | {"t": row["t"] - began} for row in rows]


async def take(rig: Rig, steps: int) -> list[Step]:
    return [await rig.roll_out() for _ in range(steps)]


def broken_off(setting: str, after: int) -> tuple[Rig, list[Step], dict]:
    """A rollout that was let go after so many steps, and what was saved of it."""

    async def run():
        rig = make(setting)
        steps = await take(rig, after)
        state = rig.saved()
        await rig.close()
        return rig, steps, state

    return run_virtual(run())


@pytest.mark.parametrize("after", BREAKS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_events_are_those_of_a_run_that_was_not_interrupted(setting, after):
    expected = make(setting).run(ALL)
    old, actual, state = broken_off(setting, after)
    new = make(setting, old.history)  # another controller, on engines that know nothing
    new.restore(state, after, old.labels)
    actual += new.run(ALL - after)
    for one, other in zip(expected, actual, strict=True):
        assert events_of(other) == events_of(one)
        assert other.batch == one.batch


def test_the_settings_leave_something_to_save():
    """Otherwise the test above would show nothing."""
    saved = {setting: [broken_off(setting, after)[2] for after in BREAKS] for setting in SETTINGS}
    has = lambda key: {setting for setting, states in saved.items() if any(state[key] for state in states)}
    assert {"ulorl", "april", "elastic", "audit", "unfinished", "two engines"} <= has("live") & has("resting")
    assert {"april", "surplus"} <= has("ready")
    assert {"rollpacker", "audit", "unfinished", "deadline"} <= has("ghosts")
    assert {"elastic"} <= has("queue")
    assert {"turns", "turns and audit"} <= has("parked")
    assert any(state["audit"]["off"] for state in saved["audit off"])
    forks = [m["trajectory"] for state in saved["forks"] for group in state["live"] for m in group["members"]]
    assert any(trajectory["parent"] is not None for trajectory in forks)
    assert any(state["mechanisms"]["tail_batch"]["left_over"] for state in saved["rollpacker"])
    is_live = lambda state, ghost: ghost["group"]["id"] in {group["id"] for group in state["live"]}
    states = [state for setting in saved for state in saved[setting]]
    assert {is_live(state, ghost) for state in states for ghost in state["ghosts"]} == {True, False}
    moved = [m for state in saved["two engines"] for group in state["live"] for m in group["members"]]
    assert {member["engine"] for member in moved} >= {0, 1}
    lanes = {m["route"]["lane"] for state in saved["elastic"] for group in state["live"] for m in group["members"]}
    assert lanes >= {"first", "later"}


def test_what_was_saved_stays_as_it_was():
    async def run():
        rig = make("april")
        await take(rig, 2)
        remembered = memory.remember(rig.stage)
        then = json.dumps(memory.written(remembered))
        await take(rig, 2)
        await rig.close()
        return remembered, then

    remembered, then = run_virtual(run())
    assert json.dumps(memory.written(remembered)) == then


def test_to_remember_copies_no_tokens():
    """They are written once, when a checkpoint is."""

    async def run():
        rig = make("elastic")
        await take(rig, 2)
        remembered = memory.remember(rig.stage)
        columns = [m["trajectory"]["tokens"] for group in remembered["live"] for m in group["members"]]
        tokens = [m.trajectory.tokens for group in rig.stage.pool.live.values() for m in group.members]
        await rig.close()
        return columns, tokens

    columns, tokens = run_virtual(run())
    assert any(tokens)
    assert all(column.values is own for column, own in zip(columns, tokens, strict=True))


def test_whoever_had_no_answer_yet_is_asked_again():
    """The environment was at work when the run was broken off: nobody knows what became of that."""
    asked = []

    def slow(turn):
        asked.append((turn.number, turn.stream))
        return 30.0 if turn.prompt.tokens[0] == 1 else 0.0

    def rig(history=None) -> Rig:
        tool = talks(seconds=slow, turns=2, time_limit_s=99.0)
        return Rig(lengths(default=4), {}, closes(20, "defer"), environment=tool, history=history)

    async def run():
        old = rig()
        await old.roll_out()
        state = old.saved()
        await old.close()
        return old, state

    old, state = run_virtual(run())
    assert [member["parking"]["answer"] for group in state["live"] for member in group["members"]] == [None, None]
    new = rig(old.history)
    new.restore(state, 1, old.labels)
    steps = new.run(3)
    assert "1/0" in [name for step in steps for name in step.trained]
    again = [call for call in asked if asked.count(call) == 2]
    assert len(set(again)) == 2, "both members of the group, about the same turn"


@pytest.mark.parametrize(
    "setting", ["elastic", "unfinished", "two engines", "rollpacker", "forks", "turns", "turns and audit"]
)
def test_what_is_restored_would_be_saved_alike(setting):
    for after in BREAKS:
        old, _, state = broken_off(setting, after)
        new = make(setting, old.history)
        new.restore(state, after, old.labels)
        assert new.saved() == state


def test_one_on_its_way_to_another_engine_arrives_there():
    old, _, _ = broken_off("two engines", 2)
    member = old.stage.resting[0]
    member.goes_to, member.engine = 1 - member.engine, None
    new = make("two engines", old.history)
    new.restore(old.saved(), 2, old.labels)
    (step,) = new.run(1)
    (first, *_) = [event for event in step.all("resume") if event["id"] == member.id]
    assert first["engine"] == member.goes_to


@pytest.mark.parametrize("on_its_way", [False, True])
def test_with_fewer_engines_everybody_goes_on_where_there_is_a_slot(on_its_way):
    old, _, _ = broken_off("two engines", 2)
    there = [member for member in old.stage.resting if member.engine == 1]
    assert there, "or this shows nothing"
    if on_its_way:
        for member in there:
            member.goes_to, member.engine = 1, None
    new = Rig(scripts, SETTINGS["two engines"][1], history=old.history, engines=1, slots=6, **SMALL)
    new.restore(old.saved(), 2, old.labels)
    resumed = {event["id"] for step in new.run(ALL - 2) for event in step.all("resume")}
    assert resumed >= {member.id for member in there}
