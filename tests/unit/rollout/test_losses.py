"""Engines that are lost in the middle of a rollout: members go on elsewhere, from the tokens that they have."""

import asyncio
import random

import pytest
from tests.helpers.mortal import Mortal
from tests.helpers.rig import _check_slots, _check_tokens, by, drawn_in_order, make_mechanisms
from tests.helpers.scripted import Scripted, Ticker, script_of
from tests.helpers.tiny import Mover, strides

from untail.backends.virtual_loop import run_virtual
from untail.config import RolloutConfig
from untail.history.store import History
from untail.observe.accounts import step_accounts
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller

LENGTHS = by(lambda prompt, member: 5 + (7 * prompt + 3 * member) % 23)


async def idle(*about):
    """Nothing happens during the steps."""


def run(
    interfere,
    steps=3,
    tables=None,
    made=(),
    engines=2,
    slots=4,
    between=lambda step, controller, backends: None,
    **rollout,
):
    """Steps in virtual time; `interfere(controller, backends)` runs beside them, `between` after each."""
    work = _run(interfere, steps, tables or {}, made, engines, slots, between, rollout)
    return run_virtual(asyncio.wait_for(work, 10_000))  # if somebody waits for what never comes


async def _run(interfere, steps, tables, made, engines, slots, between, rollout):
    config = RolloutConfig(**{"prompts": 3, "group": 3, "max_tokens": 40, "audit": 0.0, "watch_every": 4, **rollout})
    ticker = Ticker()
    backends = [Mortal(Scripted(LENGTHS, ticker=ticker)) for _ in range(engines)]

    async def score(trajectory):
        script = script_of(LENGTHS, trajectory.prompt.tokens, trajectory.id)
        return Score(script.reward if trajectory.end == "stop" else 0.0)

    mechanisms = make_mechanisms(tables, config, **{cls.__name__.lower(): cls for cls in made})
    history, prompts = History.open(None, "test", "test"), drawn_in_order(16, 0)
    controller = Controller(backends, slots, prompts, score, config, mechanisms, history, stop_ids=(0,), vocab=100)
    beside, rows = asyncio.create_task(interfere(controller, backends)), []
    try:
        for step in range(1, steps + 1):
            events = []
            batch = await controller.roll_out(step, events.append)
            events += [{"e": kind, "t": controller.stage.clock.now(), "step": step} for kind in ("update", "done")]
            rows.append((batch, events))
            for backend in backends:
                if not backend.dead.is_set():
                    await backend.load_weights(None, step)
            between(step, controller, backends)
        return rows
    finally:
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        await controller.close()


def check(rows, slots=4):
    """The books balance, tokens are whole, and nothing is trained twice."""
    names = []
    for batch, events in rows:
        assert step_accounts(events)["unaccounted"] == 0
        _check_slots(events, slots)
        for group in batch:
            for trajectory in group.trajectories:
                _check_tokens(trajectory)
                assert trajectory.end in ("stop", "length")
                names.append(trajectory.id)
    assert len(set(names)) == len(names)


def events_of(rows, kind):
    return [event for _, events in rows for event in events if event["e"] == kind]


async def kill_once(controller, backends, after=9.5, back_after=None):
    await asyncio.sleep(after)
    backends[0].die()
    if back_after is not None:
        await asyncio.sleep(back_after)
        await bring_back(controller, backends, 0)


async def bring_back(controller, backends, number):
    """With the newest weights, as whoever revives an engine has to."""
    backends[number].revive()
    if backends[number].inner.version < controller.stage.view.step - 1:
        await backends[number].load_weights(None, controller.stage.view.step - 1)
    controller.engine_is_lost(number, "it was killed")  # whoever ran there has said so already
    controller.engine_is_back(number)


@pytest.mark.parametrize("made", [(), (strides(6),)], ids=["whole", "segments"])
def test_members_go_on_elsewhere_from_what_they_have(made):
    rows = run(kill_once, made=made, tables={"loop": {}})
    check(rows)
    (lost,) = events_of(rows, "lost")
    assert (lost["engine"], lost["members"] > 0) == (0, True)
    hit = [event for event in events_of(rows, "segment") if event["why"] == "lost"]
    resumes = {event["id"]: event for event in events_of(rows, "resume")}
    assert {event["id"] for event in hit} <= set(resumes)
    assert any(event["tokens"] > 0 for event in hit), "nobody had tokens: nothing was tested"
    for event in hit:
        assert resumes[event["id"]]["engine"] == 1
        assert resumes[event["id"]]["tokens"] >= event["tokens"]
    assert all(event["engine"] == 1 for event in events_of(rows, "start") if event["t"] > lost["t"])


def test_an_engine_that_is_back_gets_work_again():
    rows = run(lambda *about: kill_once(*about, back_after=5.0), steps=4)
    check(rows)
    (back,) = events_of(rows, "back")
    assert any(event["engine"] == 0 and event["t"] > back["t"] for event in events_of(rows, "start"))


@pytest.mark.parametrize("number", [0, 1])
def test_one_that_dies_and_is_back_while_everybody_rests_costs_nobody(number):
    """Between two steps nobody runs: no member hears of it, and its engine knows none of them when it is back."""

    def between(step, controller, backends):
        backends[number].die()
        backends[number].revive()
        controller.engine_is_lost(number, "it was killed")
        controller.engine_is_back(number)

    rows = run(idle, steps=4, tables={"defer": {}}, made=(strides(6),), between=between, max_staleness=3)
    check(rows)
    assert not events_of(rows, "fail")
    assert [event["step"] for event in events_of(rows, "lost")] == [2, 3, 4]
    assert all(event["members"] > 0 for event in events_of(rows, "lost")), "nobody rested there"
    assert [event["step"] for event in events_of(rows, "back")] == [2, 3, 4]


def test_a_loss_that_is_heard_when_the_engine_is_back_already_is_not_another_one():
    """The members' own words come late: they count for them, and not for the engine."""

    async def kill_and_bring_back_at_once(controller, backends):
        await asyncio.sleep(9.5)
        backends[0].die()
        backends[0].revive()
        controller.engine_is_lost(0, "it was killed")
        controller.engine_is_back(0)

    rows = run(kill_and_bring_back_at_once, steps=4)
    check(rows)
    assert len(events_of(rows, "lost")) == 1
    assert any(event["why"] == "lost" for event in events_of(rows, "segment"))
    (back,) = events_of(rows, "back")
    assert any(event["engine"] == 0 and event["t"] > back["t"] for event in events_of(rows, "start"))


def test_with_no_engine_left_the_rollout_waits_until_one_is_back():
    rows = run(lambda *about: kill_once(*about, back_after=50.0), engines=1)
    check(rows)
    assert max(event["t"] for event in events_of(rows, "end")) > 50


def test_with_no_engine_left_and_none_coming_back_it_says_why():
    async def kill_and_give_up(controller, backends):
        await kill_once(controller, backends)
        await asyncio.sleep(1)
        controller.give_up(ValueError("no device is left"))

    with pytest.raises(ValueError, match="no device is left"):
        run(kill_and_give_up, engines=1)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_dies_and_whenever_the_books_balance(seed):
    """Engines die and come back at random while a recipe cuts, defers, watches and moves."""
    chance = random.Random(seed)

    async def plague(controller, backends):
        while True:
            await asyncio.sleep(chance.uniform(0.5, 12))
            number = chance.randrange(len(backends))
            backends[number].die()
            await asyncio.sleep(chance.uniform(0.5, 12))
            await bring_back(controller, backends, number)

    tables = {"loop": {}, "defer": {}, "compaction": {}, "repack": {"every": 3, "min_gain": 0}}
    rows = run(plague, steps=6, tables=tables, made=(strides(6),), engines=3, slots=2, max_staleness=2)
    check(rows, slots=2)


async def test_a_lent_engine_is_empty_and_gets_nobody_until_it_is_back():
    seen = []

    async def lend(controller, backends):
        await asyncio.sleep(6.5)
        await controller.lend(0)
        seen.append({member.engine for member in controller.stage.busy if member.engine is not None})
        assert backends[0].inner.running == 0
        await asyncio.sleep(10)
        controller.engine_is_back(0)

    rows = await asyncio.to_thread(run, lend, steps=4, tables={"loop": {}})
    check(rows)
    assert seen == [{1}]
    (back,) = events_of(rows, "back")
    assert any(event["engine"] == 0 and event["t"] > back["t"] for event in events_of(rows, "start"))


@pytest.mark.parametrize("how", ["lent", "lost"])
def test_whoever_was_to_go_to_an_engine_that_takes_nobody_goes_on_elsewhere(how):
    """Lent while they wait for a slot there; lost before they are sent."""

    async def take_away(controller, backends):
        await asyncio.sleep(7.5 if how == "lent" else 2.5)
        if how == "lent":
            await controller.lend(1)
        else:
            backends[1].die()

    rows = run(take_away, steps=2, made=(Mover,))
    check(rows)
    assert len(events_of(rows, "move")) == (4 if how == "lent" else 0)
