"""A group between two segments: when it is asked, who goes, who is copied, and what becomes of the copies.

A token takes a second. Prompt 0 has the only group; its members are "0/0", "0/1" and so on, and copies follow on them.
"""

import pytest
from tests.helpers.rig import Rig, by, lengths
from tests.helpers.scripted import Script
from tests.helpers.tiny import prunes, refills, stops, strides

from untail.rollout.points import Copy, GroupPoint, Mechanism, Stride, Strider, Verdict
from untail.types import stream_key

ONE = {"prompts": 1, "group": 3, "patience": 1}


class Copies(Mechanism, GroupPoint):
    """Of the first that is open, into every free place, each hotter than the last."""

    def copies(self, group, places, view):
        return [Copy(group.open[0], 1.0 + number) for number in range(places)]


class Uneven(Mechanism, Strider):
    """The first goes on for 9 tokens while the others rest after 4."""

    def stride(self, member, view):
        return Stride(9 if member.id.endswith("/0") else 4)


def test_it_is_asked_when_the_last_running_sibling_ends():
    """The two others rest at 4 tokens when it ends by itself at 5."""
    made = prunes(lambda p, m: False)
    rig = Rig(lengths((5, 8, 8)), {}, Uneven, made, **ONE)
    step = rig.step()
    (asked, *_) = rig.mechanisms.by_name["prunes"].asked
    assert [step.label(name) for name in asked] == ["0/1", "0/2"]
    assert step.of("0/1", "resume")[0]["t"] == 5.0


@pytest.mark.parametrize("how", ["fails", "is stopped"])
def test_it_is_asked_when_the_last_running_sibling(how):
    made = prunes(lambda p, m: False)
    fails = by(lambda p, m: Script(9, fails_at=5) if m == 0 and how == "fails" else 9)
    watcher = [stops(5, who=lambda p, m: m == 0)] if how == "is stopped" else []
    rig = Rig(fails, {}, Uneven, made, *watcher, watch_every=1, **ONE)
    step = rig.step()
    (asked, *_) = rig.mechanisms.by_name["prunes"].asked
    assert [step.label(name) for name in asked] == ["0/1", "0/2"]


def test_siblings_wait_for_one_another_while_their_slots_serve_others():
    """Two slots, three members, and free slots get work at once: all three are asked about together."""
    made = prunes(lambda p, m: False)
    rig = Rig(lengths((7, 7, 7)), {}, strides(3), refills(), made, slots=2, **ONE)
    step = rig.step()
    assert [len(asked) for asked in rig.mechanisms.by_name["prunes"].asked] == [3, 3]
    assert [event["t"] for event in step.all("start")] == [0.0, 0.0, 3.0]
    assert min(event["t"] for event in step.all("resume")) == 6.0


def test_each_mechanism_sees_what_the_one_before_it_pruned():
    first = prunes(lambda p, m: m == 0, reason="first")

    class Second(Mechanism, GroupPoint):
        def decide(self, group, view):
            seen.append([member.id[-1] for member in group.open])
            return {}

    seen: list[list[str]] = []
    Rig(lengths((9, 9, 9)), {}, strides(5), first, Second, **ONE).step()
    assert seen == [["1", "2"]]


# ---- copies ------------------------------------------------------------------------------------------------------


def test_a_copy_takes_the_place_of_one_that_was_stopped():
    rig = Rig(lengths((9,)), {}, strides(4), prunes(lambda p, m: m == 2), Copies, **ONE, temperature=0.5)
    step = rig.step()
    (fork,) = step.all("fork")
    parent, child = step.trained["0/0"], step.trained["0/3"]
    assert {key: fork[key] for key in ("parent", "tokens", "temperature", "engine", "group")} == {
        "parent": parent.id, "tokens": 4, "temperature": 0.5, "engine": 0, "group": parent.id[:-2],
    }  # fmt: skip
    assert (child.parent, child.forked_at, child.temperature) == (parent.id, 4, 0.5)
    assert child.stream == stream_key(0, parent.id, 3) != parent.stream
    assert (len(child.tokens), child.made, parent.made) == (9, 5, 9)
    assert step.accounts["generated"] == 9 + 9 + 4 + 5
    assert rig.backend.called("fork") == [parent.id]
    assert len(rig.backend.called("generate")) == 3
    assert step.who("start") == ["0/0", "0/1", "0/2"]
    assert [event["tokens"] for event in step.of("0/3", "resume")] == [4, 8]
    members = {step.label(member["id"]): member for member in step.one("train")["members"]}
    assert {name: (m["tokens"], m["made"], m["use"]) for name, m in members.items()} == {
        "0/0": (9, 9, "trained"),
        "0/1": (9, 9, "trained"),
        "0/2": (4, 4, "stopped"),
        "0/3": (9, 5, "trained"),
    }


def test_a_group_with_copies_waits_for_all_of_them():
    """Two of three are stopped and copied: with three done it is not whole."""
    rig = Rig(lengths((6,)), {}, strides(4), prunes(lambda p, m: m in (1, 2)), Copies, **ONE)
    step = rig.step()
    assert not step.all("cancel")
    assert sorted(step.trained) == ["0/0", "0/1", "0/2", "0/3", "0/4"]
    assert rig.backend.calls_of("fork")[0][3] == [1.0, 2.0]


def test_a_place_is_filled_once():
    rig = Rig(lengths((12,)), {}, strides(3), prunes(lambda p, m: m == 2), Copies, **ONE)
    assert len(rig.step().all("fork")) == 1


def test_a_place_that_a_watcher_freed_is_filled_too():
    rig = Rig(lengths((9,)), {}, strides(4), stops(2, who=lambda p, m: m == 1), Copies, watch_every=2, **ONE)
    step = rig.step()
    assert (step.who("stop"), step.who("fork")) == (["0/1"], ["0/3"])


def test_one_that_is_audited_goes_on_beside_its_copy():
    rig = Rig(lengths((9,)), {}, strides(4), prunes(lambda p, m: m == 2), Copies, audit=1.0, **ONE)
    one, _ = rig.run(2)
    assert one.who("fork") == ["0/3"]
    assert one.of("0/2", "audit")[0]["extra"] == 5
    assert one.trained["0/2"].made == 4


def test_without_shared_keys_and_values_a_copy_starts_with_its_tokens():
    rig = Rig(
        lengths((9,)), {}, strides(4), prunes(lambda p, m: m == 2), Copies, backend={"fork": "prefix"}, **ONE,
        temperature=0.5,
    )  # fmt: skip
    step = rig.step()
    assert rig.backend.called("fork") == []
    spec = rig.backend.called("generate")[-1]
    assert (step.label(spec.id), spec.done, spec.tokens[-4:]) == ("0/3", 4, (1, 2, 3, 4))
    assert spec.stream == step.trained["0/3"].stream
    assert (spec.sampling.temperature, spec.sampling.policy_temperature) == (0.5, 0.5)
    assert step.trained["0/3"].made == 5


def test_a_copy_that_cannot_be_made_costs_itself_alone(monkeypatch):
    rig = Rig(lengths((9,)), {}, strides(4), prunes(lambda p, m: m == 2), Copies, **ONE)

    async def fork(*_):
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(rig.backend, "fork", fork)
    step = rig.step()
    assert step.who("fail") == ["0/3"]
    assert step.one("fail")["error"] == "no room for a copy"
    assert sorted(step.trained) == ["0/0", "0/1", "0/2"]


def test_a_copy_that_never_got_a_slot_goes_with_its_group():
    """Two are to be kept, and one slot is free: the copy still waits for it when the second has ended."""
    rig = Rig(lengths((5, 5, 9)), {}, strides(4), prunes(lambda p, m: m == 2), Copies, slots=2, pool=1, **ONE)
    rig.stage.mechanisms.admits.append(_Keeps())
    step = rig.step()
    assert (step.who("fork"), step.who("cancel")) == (["0/3"], ["0/3"])
    assert step.one("cancel")["made"] == 0
    assert not rig.backend.alive


class _Keeps:
    def shape(self, plan, view):
        plan.keep = 2
        return plan

    def rank(self, view):
        return None


class InTurn(Mechanism, GroupPoint):
    """The second goes first, then the first; the last is copied each time."""

    def decide(self, group, view):
        goes = "/1" if not any(member.trajectory.stopped for member in group.members) else "/0"
        return {m.id: Verdict("stop", "turn") for m in group.open if m.id.endswith(goes)}

    def copies(self, group, places, view):
        return [Copy(group.open[-1])] * places


def test_a_copy_of_a_copy():
    step = Rig(lengths((12,)), {}, strides(3), InTurn, **ONE).step()
    copies = {step.label(t.id): t for t in step.trained.values() if t.parent}
    assert {name: (step.label(t.parent), t.forked_at) for name, t in copies.items()} == {
        "0/3": ("0/2", 3),
        "0/4": ("0/3", 6),
    }
    assert [copies[name].made for name in ("0/3", "0/4")] == [9, 6]
    assert step.accounts["generated"] == 12 + 3 + 6 + 9 + 6


def test_patience_of_one_segment():
    rig = Rig(lengths((9,)), {}, strides(2), prunes(lambda p, m: m == 2), **{**ONE, "patience": "segment"})
    (stop,) = rig.step().all("stop")
    assert (stop["tokens"], stop["segments"]) == (2, 1)


class Draws(Mechanism, GroupPoint):
    """At every boundary the last is drawn against the first two: it goes at the second, and they live with 3/4 each."""

    def decide(self, group, view):
        *others, last = [member.id for member in group.open]
        act = "stop" if len(group.open[-1].trajectory.segments) == 2 else "spare"
        return {**{name: Verdict("spare", "draw", chance=0.25) for name in others}, last: Verdict(act, "draw")}


def test_who_outlives_a_draw_is_known_with_its_chance():
    rig = Rig(lengths((9, 9, 9)), {}, strides(3), Draws, prompts=1, group=3, patience=6)
    step = rig.step()
    survival = {name: trajectory.survival for name, trajectory in step.trained.items()}
    assert survival == {"0/0": 0.75, "0/1": 0.75, "0/2": 0.0}, "the first boundary was within the patience"
