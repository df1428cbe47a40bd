"""What becomes of members: stopped, cancelled, audited. A token takes a second; watchers see every token."""

import random

import pytest
from tests.helpers.rig import Rig, by, lengths
from tests.helpers.scripted import Script
from tests.helpers.tiny import closes, shapes, stops, strides

from untail.observe.fates import Fates
from untail.types import Segment

LONG_AGO = {"prompts": 1, "group": 3, "watch_every": 1, "patience": 1}
FIRST_ONLY = lambda prompt, member: member == 0


def rewards_of(step) -> dict[str, float]:
    return {name: trajectory.reward for name, trajectory in step.trained.items()}


# ---- stopped -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "reward", "use"),
    [("penalty", -1.0, "stopped"), ("zero", 0.0, "stopped"), ("group_min", 0.25, "stopped"), ("mask", -1.0, "masked")],
)
def test_what_a_stopped_one_gets(rule, reward, use):
    scripts = by(lambda p, m: Script((9, 5, 6)[m], reward=(1.0, 0.25, 0.75)[m]))
    step = Rig(scripts, {}, stops(4, rule, who=FIRST_ONLY), **LONG_AGO).step()
    assert rewards_of(step) == {"0/0": reward, "0/1": 0.25, "0/2": 0.75}
    assert [member["use"] for member in step.one("train")["members"]] == [use, "trained", "trained"]
    assert step.trained["0/0"].masked is (rule == "mask")
    assert (step.trained["0/0"].stopped, step.trained["0/0"].end) == ("bad", None)
    assert len(step.trained["0/0"].tokens) == 4
    stop = step.one("stop")
    assert (stop["tokens"], stop["reason"], stop["segments"], stop["audited"]) == (4, "bad", 1, False)
    assert step.accounts["masked" if rule == "mask" else "stopped"] == 4
    assert not step.of("0/0", "end", "score")


def test_a_stopped_one_holds_its_slot_until_its_engine_lets_go():
    """And what the engine made meanwhile is overrun."""
    rig = Rig(lengths((9, 5, 6)), {}, stops(4, who=FIRST_ONLY), **LONG_AGO)
    step = rig.step()
    kinds = [event["e"] for event in step.of("0/0")]
    assert kinds == ["start", "stop", "left"]
    assert rig.backend.called("abort") == [[step.one("stop")["id"]]]
    assert step.accounts["overrun"] == sum(event["overrun"] for event in step.all("left"))


def test_tokens_past_the_decision_are_overrun():
    """The engine delivers two chunks before anybody looks: the stop is decided on the first."""
    rig = Rig(lengths((9, 5, 6)), {}, stops(4, who=FIRST_ONLY), **LONG_AGO)
    hear, held = rig.controller.lives.hear, []

    def late(member, item):
        if member.id.endswith("/0") and member.length == 3 and not held:
            held.append((member, item))  # its fourth token, which is seen together with the fifth
        elif held and held[0] and member is held[0][0]:
            first, held[0] = held[0], None
            hear(*first)
            hear(member, item)
        else:
            hear(member, item)

    rig.controller.lives.hear = late
    step = rig.step()
    assert step.one("stop")["tokens"] == 4
    assert [event["overrun"] for event in step.of("0/0", "left")] == [1]
    assert (len(step.trained["0/0"].tokens), step.accounts["overrun"]) == (4, 1)


def test_one_that_is_stopped_at_a_boundary_is_released_there():
    rig = Rig(lengths((9, 5, 6)), {}, strides(4), stops(4, who=FIRST_ONLY), **LONG_AGO)
    step = rig.step()
    assert rig.backend.called("release") == [step.one("stop")["id"]]
    assert not rig.backend.called("abort")
    assert [(event["e"], event.get("overrun")) for event in step.of("0/0")][1:] == [("stop", None), ("left", 0)]
    assert step.trained["0/0"].segments == [Segment(0, 4, "bad")]


@pytest.mark.parametrize(
    ("more", "config", "tokens"),
    [
        ((), {"max_tokens": 40}, 10),  # a quarter of the budget
        ((strides(8, in_place=True),), {"max_tokens": 40}, 16),  # two strides
        ((), {"max_tokens": 40, "patience": 6}, 6),
        ((shapes(budget=24),), {"max_tokens": 40}, 6),  # of the group's own budget
        ((), {"max_tokens": 10_000}, 2048),
    ],
)
def test_patience(more, config, tokens):
    scripts = lengths((3000 if tokens == 2048 else 39, 3, 3))
    every = 64 if tokens == 2048 else 1
    rig = Rig(scripts, {}, *more, stops(1, who=FIRST_ONLY), prompts=1, group=3, watch_every=every, **config)
    assert rig.step().one("stop")["tokens"] == tokens


def test_a_cut_needs_no_patience():
    step = Rig(lengths((9, 5, 6)), {}, stops(3, act="cut", who=FIRST_ONLY), prompts=1, group=3, watch_every=4).step()
    assert not step.all("stop")
    assert step.trained["0/0"].segments[0].why == "cut"


def test_a_group_left_with_one_that_counts_is_dropped():
    scripts = lengths((9, 5, 9), (3, 3, 3))
    step = Rig(scripts, {}, stops(4, "mask", who=lambda p, m: p == 0 and m != 1), **LONG_AGO).step()
    assert (step.groups("drop"), step.groups("train")) == (["0"], ["1"])
    assert step.one("drop")["tokens"] == 4 + 5 + 4


def test_the_first_verdict_holds_and_reasons_are_kept_apart():
    class Second(stops(2, "zero", reason="second", who=lambda p, m: m < 2)):
        pass

    step = Rig(lengths((9, 9, 9)), {}, stops(2, reason="first", who=FIRST_ONLY), Second, **LONG_AGO).step()
    assert {step.label(e["id"]): e["reason"] for e in step.all("stop")} == {"0/0": "first", "0/1": "second"}


# ---- cancelled ---------------------------------------------------------------------------------------------------


def test_a_group_that_has_enough_cancels_the_others():
    rig = Rig(lengths((2, 3, 50, 60)), {}, shapes(size=4, keep=2), prompts=1)
    step = rig.step()
    assert sorted(step.trained) == ["0/0", "0/1"]
    assert sorted(step.who("cancel")) == ["0/2", "0/3"]
    assert {(event["why"], event["audited"]) for event in step.all("cancel")} == {("group", False)}
    assert step.seconds == 3
    assert step.accounts["cancelled"] == sum(event["tokens"] for event in step.all("cancel")) >= 4
    assert sorted(step.who("left")) == ["0/2", "0/3"]
    stats = rig.history.stats(step.batch[0].prompt.id)
    assert (stats.finished, stats.length_max) == (2, 3)


def test_one_that_has_ended_is_cancelled_too_if_nobody_waits_for_its_reward():
    scripts = by(lambda p, m: Script(3, score_s=4.0 if m == 2 else 0.0))
    step = Rig(scripts, {}, shapes(size=3, keep=2), prompts=1).step()
    assert [(e["e"], e.get("tokens")) for e in step.of("0/2")] == [
        ("start", None),
        ("end", 3),
        ("cancel", 3),
        ("score", None),
    ]
    assert sorted(step.trained) == ["0/0", "0/1"]


def test_those_that_wait_for_a_slot_are_cancelled_where_they_are():
    rig = Rig(lengths((5, 5, 5, 5)), {}, shapes(size=4, keep=2), strides(3), prompts=1, slots=3)
    step = rig.step()
    # When the first two end, 0/2 has ended as well or runs; 0/3 had three tokens, or waits for its first slot.
    assert sorted(step.trained) == ["0/0", "0/1"]
    assert {step.label(e["id"]): e["tokens"] for e in step.all("cancel")} == {"0/2": 5, "0/3": 3}


def test_one_without_a_slot_is_cancelled_without_a_token():
    step = Rig(lengths((3, 3, 3, 3)), {}, shapes(size=4, keep=2), prompts=1, slots=1).step()
    assert [(event["e"], event.get("tokens")) for event in step.of("0/3")] == [("cancel", 0)]


def test_what_a_group_cancels_is_not_the_step_s_doing():
    """The step closes at the moment in which its last group has enough, before the engine has let go."""
    step = Rig(lengths((2, 3, 50), (2, 2, 50)), {"tail_batch": {"prompts": 1.0, "samples": 1.5}}).step()
    assert {step.label(e["id"]): e["why"] for e in step.all("cancel")} == {"0/2": "group", "1/2": "group"}


def test_an_engine_that_fails_while_it_lets_go_is_contained():
    """What was stopped stays stopped."""
    scripts = by(lambda p, m: Script(9 if m == 0 else 3))
    rig = Rig(scripts, {}, stops(2, who=FIRST_ONLY), **LONG_AGO)

    async def abort(names):
        rig.backend.calls.append(("abort", list(names)))
        for name in names:
            rig.backend.alive[name].script = Script(9, fails_at=0)  # after the token that is under way

    rig.backend.abort = abort
    step = rig.step()
    assert (step.one("fail")["tokens"], step.accounts["overrun"]) == (0, 1)
    assert rewards_of(step) == {"0/0": -1.0, "0/1": 1.0, "0/2": 1.0}


# ---- audited -----------------------------------------------------------------------------------------------------

AUDIT = {**LONG_AGO, "audit": 1.0, "max_false_kills": 1.0}


def test_an_audited_one_runs_on_and_its_group_does_not_wait():
    rig = Rig(lengths((10, 5, 6), default=5), {}, stops(4, who=lambda p, m: (p, m) == (0, 0)), **AUDIT)
    one, two, three = rig.run(3)
    assert one.one("stop")["audited"]
    assert (one.seconds, one.groups("train")) == (6, ["0"])
    assert len(one.trained["0/0"].tokens) == 4  # trained as if it had been stopped there
    assert one.trained["0/0"].reward == -1.0
    assert one.who("defer") == ["0/0"]
    assert one.accounts["carried_out"] == 2
    audit = two.one("audit")
    assert (two.label(audit["id"]), audit["reason"], audit["tokens"], audit["extra"]) == ("0/0", "bad", 10, 6)
    assert audit["reward"] == 1.0
    assert two.accounts["audited"] == 6
    assert two.who("left") == ["0/0"]
    assert not three.all("audit")
    assert len(rig.backend.called("generate")) == 9  # its sequence went on


def test_a_step_does_not_wait_for_ghosts_between_segments():
    """After 12 seconds nothing but the ghost of 0/0 rests: there is no other round for it."""
    step = Rig(lengths((30, 12, 12)), {}, strides(4), stops(4, who=FIRST_ONLY), **AUDIT).step()
    assert step.seconds == 12
    assert step.accounts["carried_out"] == 8


def test_a_ghost_in_the_slots_is_no_reason_to_wait():
    rig = Rig(lengths((30, 5, 6), default=3), {}, stops(4, who=lambda p, m: (p, m) == (0, 0)), slots=3, **AUDIT)
    one, two = rig.run(2)
    assert (one.seconds, two.seconds) == (6, 6)  # in the second step it holds one of three slots


def test_nobody_looks_at_a_ghost():
    class Looks(stops(4)):
        def __init__(self, config):
            super().__init__(config)
            self.seen = []

        def look(self, member, view):
            self.seen.append(member.ghost)
            return super().look(member, view)

    rig = Rig(lengths((10, 12, 12)), {}, Looks, **AUDIT)
    rig.run(2)
    assert set(rig.mechanisms.by_name["looks"].seen) == {None}


def test_a_cancelled_one_may_be_audited_too():
    rig = Rig(lengths((2, 3, 10), default=5), {}, shapes(size=3, keep=2), prompts=1, audit=1.0)
    one, two, three = rig.run(3)
    cancel = one.one("cancel")
    assert (one.label(cancel["id"]), cancel["audited"]) == ("0/2", True)
    audits = [event for step in (one, two, three) for event in step.all("audit")]
    assert [(rig.labels[e["id"].partition("/")[0]], e["reason"], e["tokens"]) for e in audits if e["tokens"] == 10] == [
        ("0", "cancelled", 10)
    ]
    assert audits[0]["extra"] == 10 - cancel["tokens"]


def test_what_a_closing_step_cancels_may_be_audited():
    rig = Rig(lengths((2, 2, 9), default=3), {}, closes(4, "close"), stops(99), **AUDIT)
    one, two, three = rig.run(3)
    assert (one.who("cancel"), one.one("cancel")["tokens"]) == (["0/2"], 4)
    audit = [event for step in (one, two, three) for event in step.all("audit")]
    assert [(event["tokens"], event["extra"], event["reason"]) for event in audit] == [(9, 5, "cancelled")]


def test_one_that_waits_for_a_slot_is_audited_from_there():
    """Stopped between two segments, and cancelled there: its ghost takes its place in the queue."""
    rig = Rig(lengths((4, 4, 9)), {}, shapes(size=3, keep=2), strides(3), prompts=1, slots=2, audit=1.0)
    one, *later = rig.run(4)
    (cancel,) = one.of("0/2", "cancel")
    assert cancel["tokens"] == 3
    audits = [event for step in (one, *later) for event in step.of("0/2", "audit")]
    assert [(event["tokens"], event["extra"]) for event in audits] == [(9, 6)]


def test_a_ghost_goes_on_where_its_whole_group_is_gone():
    """Its strides depend on a group of which nobody is left."""
    rig = Rig(lengths((2, 2), (20, 20), default=7), {"unfinished": {}}, closes(8, "close"), audit=1.0)
    one, two, three = rig.run(3)
    assert (one.groups("train"), one.groups("drop"), sorted(one.who("cancel"))) == (["0"], ["1"], ["1/0", "1/1"])
    audits = [event for step in (two, three) for event in step.all("audit")]
    assert [event["tokens"] for event in audits if event["tokens"] == 20] == [20, 20]


def test_a_ghost_whose_engine_or_scorer_fails_is_gone():
    for fate in ({"fails_at": 8}, {"score_fails": True}):
        scripts = by(lambda p, m, f=fate: Script(10, **f) if (p, m) == (0, 0) else Script(5))
        rig = Rig(scripts, {}, stops(4, who=lambda p, m: (p, m) == (0, 0)), **AUDIT)
        steps = rig.run(3)
        fails = [event for step in steps for event in step.all("fail")]
        assert [event["tokens"] for event in fails] == [4 if "fails_at" in fate else 6]
        assert not any(step.all("audit") for step in steps)
        assert not rig.stage.pool.ghosts


def test_a_watcher_that_stops_what_would_be_rewarded_switches_itself_off():
    """Everything would be rewarded: five audits are enough, unless others are still under way."""
    rig = Rig(lengths(default=6), {}, stops(4), **{**AUDIT, "max_false_kills": 0.5})
    one, two, three = rig.run(3)
    offs = [event for step in (one, two, three) for event in step.all("off")]
    assert [(e["reason"], e["audited"], e["false_kills"]) for e in offs] == [("bad", 6, 6)]
    assert offs[0]["low"] > 0.5
    assert one.all("stop")
    assert not three.all("stop")
    assert set(rewards_of(three).values()) == {1.0}


def test_who_is_cancelled_is_nobody_s_fault():
    rig = Rig(lengths((2, 3, 10), default=3), {}, shapes(size=3, keep=2), prompts=1, audit=1.0, max_false_kills=0.0)
    steps = rig.run(4)
    assert any(step.all("audit") for step in steps)
    assert not any(step.all("off") for step in steps)


def test_the_false_kill_rate_of_the_audited_is_that_of_all():
    """Of the stopped 30 % would be rewarded; half of them are audited."""
    truth = {}

    def script(prompt, member):
        rewarded = random.Random(f"{prompt} {member}").random() < 0.3
        truth[prompt, member] = rewarded
        return Script(7, reward=float(rewarded))

    config = {**AUDIT, "prompts": 40, "group": 8, "audit": 0.5}
    rig = Rig(script, {}, stops(4), pool=120, slots=400, **config)
    fates = Fates()
    *steps, last = rig.run(4)
    for event in [event for step in steps for event in step.events] + last.all("audit"):
        fates.hear(event)
    rate = fates.false_kills()["bad"]
    assert rate["stopped"] == 3 * 320
    assert 0.4 < rate["audited"] / rate["stopped"] < 0.6
    low, high = rate["ci95"]
    assert low < sum(truth.values()) / len(truth) < high
    assert high - low < 0.1
