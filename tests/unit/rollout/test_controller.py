"""The controller: who gets a slot and when, and how a step ends. A token takes a second."""

import asyncio
import math
import random

import pytest
from tests.helpers.rig import Rig, by, lengths
from tests.helpers.scripted import Script
from tests.helpers.tiny import Mover, closes, keeps, numbers, prunes, refills, routes, shapes, stops, strides

from untail.errors import ConfigError
from untail.rollout.live import Route
from untail.rollout.points import Lane, Mechanism, Place, Verdict, Watch
from untail.types import Segment


def lengths_of(step) -> dict[str, int]:
    return {name: len(trajectory.tokens) for name, trajectory in step.trained.items()}


# ---- plain GRPO --------------------------------------------------------------------------------------------------


def test_a_plain_rollout_waits_for_all_and_cuts_nothing():
    rig = Rig(lengths((3, 7), (5, 9)))
    step = rig.step()
    assert lengths_of(step) == {"0/0": 3, "0/1": 7, "1/0": 5, "1/1": 9}
    assert step.seconds == 9
    assert step.who("start") == ["0/0", "0/1", "1/0", "1/1"]
    assert [event["budget"] for event in step.all("admit")] == [100, 100]
    assert {event["e"] for event in step.events} == {
        *("step", "admit", "start", "end", "score", "train", "rolled_out", "update", "done")
    }
    assert {(spec.budget, spec.done) for spec in rig.backend.called("generate")} == {(100, 0)}
    assert step.accounts["trained"] == 24


def test_the_policy_is_measured_at_the_training_temperature():
    rig = Rig(lengths(), temperature=0.8)
    rig.step()
    (sampling,) = {spec.sampling for spec in rig.backend.called("generate")}
    assert (sampling.temperature, sampling.policy_temperature, sampling.stop_ids) == (0.8, 0.8, (0,))


def test_a_response_that_reaches_its_budget_is_cut_off_there():
    step = Rig(lengths((4, 50)), prompts=1, max_tokens=10).step()
    assert (step.trained["0/1"].end, step.trained["0/1"].reward) == ("length", 0.0)
    assert [event["end"] for event in step.of("0/1", "end")] == ["length"]
    assert lengths_of(step) == {"0/0": 4, "0/1": 10}


def test_one_at_its_budget_without_a_reward_gets_what_its_plan_says():
    scripts = by(lambda p, m: Script(50 if m else 4, reward=0.0))
    step = Rig(scripts, {}, shapes(budget=10, truncated_reward=-0.1), prompts=1).step()
    assert (step.trained["0/0"].reward, step.trained["0/1"].reward) == (0.0, -0.1)
    assert [event["reward"] for event in step.of("0/1", "score")] == [-0.1]


def test_no_more_run_than_there_are_slots():
    rig = Rig(lengths(), slots=3, prompts=4)
    step = rig.step()
    assert rig.backend.most == 3
    assert [event["t"] for event in step.all("start")] == [0, 0, 0, 4, 4, 4, 8, 8]


def test_every_step_has_prompts_and_streams_of_its_own():
    rig = Rig(lengths())
    one, two = rig.run(2)
    assert (one.groups("train"), two.groups("train")) == (["0", "1"], ["2", "3"])
    streams = [spec.stream for spec in rig.backend.called("generate")]
    assert len(set(streams)) == 8
    again = Rig(lengths())
    again.run(2)
    assert [spec.stream for spec in again.backend.called("generate")] == streams


def test_what_the_engines_did_is_told_step_by_step():
    rig = Rig(lengths((4, 4), (4, 4), default=6), engines=2)
    one, two = (step.one("rolled_out") for step in rig.run(2))
    assert [(told["generated"], told["computed"], told["busy_s"]) for told in (one, two)] == [
        (16, 16 + 4 * 4, 16.0),
        (24, 24 + 4 * 4, 24.0),
    ]


def test_it_runs_in_real_time_too():
    rig = Rig(by(lambda p, m: 2 + p + m), {"oversample": {"rate": 0.3, "rest": "defer"}}, strides(2))
    for backend in rig.backends:
        backend.latency = 0.0
    steps = asyncio.run(rig._run(3))
    assert all(len(step.batch) >= 2 for step in steps)


# ---- rounds, refill, order of service ----------------------------------------------------------------------------


def test_without_refill_what_is_at_a_boundary_waits_for_the_round_to_end():
    step = Rig(lengths(default=5), {}, strides(2), slots=2).step()
    assert step.who("start", "resume") == ["0/0", "0/1", "1/0", "1/1"] * 3
    assert [event["tokens"] for event in step.of("0/0", "segment", "resume", "end")] == [2, 2, 4, 4, 5]
    segments = [Segment(0, 2, "boundary"), Segment(2, 4, "boundary"), Segment(4, 5, "stop")]
    assert step.trained["1/1"].segments == segments
    assert [(event["segments"], event["boundaries"]) for event in step.all("end")] == [(3, 2)] * 4


def test_with_refill_unfinished_work_goes_before_new_work():
    rig = Rig(lengths(default=5), {}, strides(2), refills(), slots=2)
    step = rig.step()
    assert step.who("start", "resume") == ["0/0", "0/1"] * 3 + ["1/0", "1/1"] * 3
    assert step.seconds == 10  # nothing ever waits while a slot is free
    assert len(rig.backend.called("generate")) == 4  # the sequences go on, nothing is begun again


def test_new_work_goes_by_priority():
    class First(shapes()):
        def shape(self, plan, view):
            plan.priority = float(plan.prompt.tokens[0])
            return plan

    step = Rig(lengths(), {}, First, slots=2, prompts=3).step()
    assert step.who("start") == ["2/0", "2/1", "1/0", "1/1", "0/0", "0/1"]


def test_refill_starts_new_groups_while_others_run():
    """Two groups would do for the batch; a slot is free from second 2 on, and at most three groups are under way."""

    class Ahead(refills()):
        def refill(self, view):
            return 3 - len(view.groups) - len(view.ready)

    step = Rig(lengths((2, 9), (2, 12)), {"defer": {}}, Ahead, slots=4).step()
    starts = {step.label(event["id"]): event["t"] for event in step.all("start")}
    assert starts == {"0/0": 0, "0/1": 0, "1/0": 0, "1/1": 0, "2/0": 2, "2/1": 2}
    assert (step.groups("train"), step.seconds) == (["0", "2"], 9)
    assert step.who("defer") == ["1/1"]


def test_refill_does_not_start_more_than_a_batch_where_nothing_can_be_left():
    """The group of prompt 0 is thrown away while another runs: one more is needed, whatever the mechanism likes."""
    picky = keeps(lambda group: group.prompt.tokens[0] != 0)
    step = Rig(lengths((2, 2), (6, 6)), {}, refills(5), picky, slots=16).step()
    assert step.groups("admit") == ["0", "1", "2"]
    assert step.groups("train") == ["1", "2"]


def test_a_member_goes_on_in_its_slot_where_its_stride_says_so():
    rig = Rig(lengths(default=5), {}, strides(2, in_place=True), prompts=1, slots=2)
    step = rig.step()
    assert not step.all("segment") + step.all("resume")
    assert [call[2] for call in rig.backend.calls if call[0] == "extend"] == [2, 2, 2, 2]
    segments = [Segment(0, 2, "boundary"), Segment(2, 4, "boundary"), Segment(4, 5, "stop")]
    assert step.trained["0/0"].segments == segments


def test_a_stride_is_cut_to_the_budget_that_is_left():
    rig = Rig(lengths(default=50), {}, strides(4, in_place=True), prompts=1, max_tokens=10)
    step = rig.step()
    assert [call[2] for call in rig.backend.calls if call[0] == "extend"] == [4, 4, 2, 2]
    assert lengths_of(step) == {"0/0": 10, "0/1": 10}


def test_a_lane_takes_no_more_than_its_share():
    """Even prompts may have a quarter of the four slots: one. The others take what is left."""
    lanes = routes(lambda member: Route("slow", share=0.25) if numbers(member)[0] % 2 == 0 else None)
    step = Rig(lengths(), {}, lanes, slots=4, prompts=4).step()
    starts = {step.label(event["id"]): (event["t"], event["lane"]) for event in step.all("start")}
    assert starts == {
        **{"0/0": (0, "slow"), "1/0": (0, "all"), "1/1": (0, "all"), "3/0": (0, "all")},
        **{"0/1": (4, "slow"), "3/1": (4, "all"), "2/0": (8, "slow"), "2/1": (12, "slow")},
    }


def test_a_lane_may_set_the_stride_or_scale_what_others_set():
    lanes = routes(lambda member: Route(stride=5) if numbers(member)[1] == 0 else Route(scale=0.5))
    step = Rig(lengths(default=6), {}, lanes, strides(4, in_place=True), prompts=1).step()
    assert [segment.end for segment in step.trained["0/0"].segments] == [5, 6]
    assert [segment.end for segment in step.trained["0/1"].segments] == [2, 4, 6]


def test_who_is_cut_by_a_watcher_is_asked_for_its_lane_again():
    """So is who fills the KV pool in the fast lane demoted: it keeps its tokens."""

    class Demotes(Mechanism, Lane, Watch):
        def route(self, member, view):
            return Route("fast") if member.is_new else Route("slow")

        def look(self, member, view):
            return Verdict("cut", "kv") if member.route.lane == "fast" and member.length == 3 else None

    rig = Rig(lengths(default=6), {}, Demotes, refills(), prompts=1, watch_every=1)
    step = rig.step()
    assert [(e["e"], e.get("lane"), e.get("why")) for e in step.of("0/0", "start", "segment", "resume")] == [
        ("start", "fast", None),
        ("segment", None, "cut"),
        ("resume", "slow", None),
    ]
    assert step.trained["0/0"].segments == [Segment(0, 3, "cut"), Segment(3, 6, "stop")]
    assert len(rig.backend.called("generate")) == 2


# ---- several engines ---------------------------------------------------------------------------------------------


def test_the_emptiest_engine_is_next_unless_a_mechanism_places():
    step = Rig(lengths(), engines=2, slots=2).step()
    assert [event["engine"] for event in step.all("start")] == [0, 1, 0, 1]

    class ByPrompt(Mechanism, Place):
        def place(self, member, free, view):
            return numbers(member)[0] if numbers(member)[0] in free else None

    step = Rig(lengths(), {}, ByPrompt, engines=2, slots=2).step()
    assert [event["engine"] for event in step.all("start")] == [0, 0, 1, 1]


def test_what_rests_goes_on_where_its_kv_is():
    rig = Rig(lengths(default=6), {}, strides(2), engines=2, slots=2)
    step = rig.step()
    homes = {event["id"]: event["engine"] for event in step.all("start")}
    assert {(event["id"], event["engine"]) for event in step.all("resume")} == set(homes.items())
    assert [len(backend.called("generate")) for backend in rig.backends] == [2, 2]


def test_moves_keep_tokens_and_begin_with_what_is_done():
    rig = Rig(lengths(default=10), {}, Mover, engines=2, slots=4, prompts=1, watch_every=1)
    step = rig.step()
    (move,) = step.all("move")
    assert (step.label(move["id"]), move["source"], move["engine"]) == ("0/0", 0, 1)
    assert 0 < move["tokens"] < 10
    moved = [spec for spec in rig.backends[1].called("generate") if spec.id == move["id"]]
    (first,) = [spec for spec in rig.backends[0].called("generate") if spec.id == move["id"]]
    assert [spec.done for spec in moved] == [move["tokens"]]
    assert moved[0].tokens == (*first.tokens, *range(1, move["tokens"] + 1))
    assert moved[0].stream == first.stream
    assert rig.backends[0].called("release") == [move["id"]]
    assert [event["engine"] for event in step.of("0/0", "start", "resume")] == [0, 1]
    assert step.accounts["generated"] == 20  # nothing is generated again
    assert step.trained["0/0"].segments == [Segment(0, move["tokens"], "cut"), Segment(move["tokens"], 10, "stop")]


def test_a_move_waits_for_a_slot_of_its_engine():
    rig = Rig(lengths((10, 6)), {}, Mover, engines=2, slots=1, prompts=1, watch_every=1)
    step = rig.step()
    (resume,) = step.of("0/0", "resume")
    assert (resume["t"], resume["engine"]) == (6, 1)


def test_the_ghost_of_one_that_waits_to_move_goes_where_it_was_to_go():
    """It waits for engine 1 until its group needs it no longer; engine 0 has a slot long before."""
    keeps_two = shapes(size=4, keep=2)
    rig = Rig(lengths((10, 12, 1, 1)), {}, Mover, keeps_two, engines=2, slots=1, prompts=1, watch_every=1, audit=1.0)
    one, *later = rig.run(4)
    assert (one.who("move"), one.who("cancel")) == (["0/0"], ["0/0", "0/1"])
    assert [event["engine"] for step in (one, *later) for event in step.of("0/0", "resume")] == [1]


def test_the_ghost_of_one_that_is_being_moved_is_moved():
    """It is stopped by the chunk that brings it to its boundary, which others would pass in place."""
    watches = {"watch_every": 4, "patience": 1, "audit": 1.0, "max_false_kills": 1.0}
    made = (Mover, strides(20, in_place=True), stops(7, who=lambda prompt, member: member == 0))
    step = Rig(lengths((10, 12)), {}, *made, engines=2, slots=4, prompts=1, **watches).step()
    kinds = [event["e"] for event in step.of("0/0")]
    assert kinds == ["start", "stop", "segment", "move", "resume", "left", "audit"]
    assert [event["engine"] for event in step.of("0/0", "start", "resume")] == [0, 1]


def test_moves_are_asked_for_every_so_often_and_after_each_update():
    rig = Rig(lengths(default=8), {}, Mover, engines=2, prompts=1, watch_every=1)
    one, two = rig.run(2)
    asked = rig.mechanisms.by_name["mover"].asked
    begins = [one.one("step")["t"], two.one("step")["t"]]
    assert asked == [begins[0] + 1, begins[0] + 4, begins[0] + 7, begins[1] + 1, begins[1] + 4, begins[1] + 7]


# ---- how a step ends ---------------------------------------------------------------------------------------------

LATE = lengths((2, 2, 2), (2, 2, 9), (2, 9, 9), default=2)
CLOSING = {"prompts": 3, "group": 3}


def test_close_trains_a_group_with_two_members_and_cancels_one_with_fewer():
    step = Rig(LATE, {}, closes(4, "close"), **CLOSING).step()
    assert lengths_of(step) == {"0/0": 2, "0/1": 2, "0/2": 2, "1/0": 2, "1/1": 2}
    assert sorted(step.who("cancel")) == ["1/2", "2/1", "2/2"]
    assert {event["why"] for event in step.all("cancel")} == {"step"}
    assert [(step.labels[e["group"]], e["why"], e["tokens"]) for e in step.all("drop")] == [
        ("2", "fewer than two members", 2)
    ]
    assert step.seconds == 4
    assert sum(event["tokens"] for event in step.all("cancel")) == step.accounts["cancelled"] > 0


def test_cancel_throws_unfinished_groups_away_whole():
    step = Rig(LATE, {}, closes(4, "cancel"), **CLOSING).step()
    assert step.groups("train") == ["0"]
    assert [(step.labels[e["group"]], e["why"], e["tokens"]) for e in step.all("drop")] == [
        ("1", "not waited for", 4),
        ("2", "not waited for", 2),
    ]


def test_a_reward_that_comes_while_the_step_closes_does_not_bring_a_cancelled_group_back():
    """When the step closes, group 1 has two members done, one that runs, and one whose reward is on its way."""
    scripts = by(lambda p, m: Script(9 if (p, m) == (1, 3) else 2, score_s=5.0 if (p, m) == (1, 2) else 0.0))
    step = Rig(scripts, {}, closes(4, "cancel"), prompts=2, group=4).step()
    assert step.groups("train") == ["0"]
    assert step.groups("drop") == ["1"]
    assert sorted(step.who("cancel")) == ["1/2", "1/3"]


def test_what_was_not_waited_for_is_remembered_as_a_lower_bound():
    rig = Rig(LATE, {}, closes(4, "cancel"), **CLOSING)
    rig.step()
    stats = {p.tokens[0]: rig.history.stats(p.id) for p in rig.prompts}
    assert [(stats[n].count, stats[n].finished) for n in range(3)] == [(3, 3), (3, 2), (3, 1)]


def test_defer_goes_on_in_the_next_step_with_what_there_is():
    rig = Rig(LATE, {}, closes(4, "defer", groups=3), prompts=1, group=3)
    one, two, three = rig.run(3)
    assert one.groups("train") == ["0"]
    assert sorted(one.who("defer")) == ["1/2", "2/1", "2/2"]
    assert one.accounts["carried_out"] == two.accounts["carried_in"] > 0
    assert not one.all("cancel") + two.all("cancel")
    assert (two.groups("admit"), two.groups("train")) == (["3"], ["3"])
    # Group 1 has had four seconds of the first step and as many of the second; it ends in the third.
    assert three.groups("train") == ["1"]
    deferred = three.trained["1/2"]
    assert deferred.version == sorted(deferred.version)
    assert set(deferred.version) == {0, 1, 2}
    assert [event["versions"] for event in three.of("1/2", "end")] == [[0, 2]]
    assert len([spec for spec in rig.backend.called("generate") if spec.id == deferred.id]) == 1
    assert [segment.why for segment in deferred.segments] == ["cut", "cut", "stop"]


def test_the_most_groups_are_started_and_the_earliest_time_closes():
    class Sooner(closes(3, "close", groups=4)):
        pass

    step = Rig(lengths((2, 2), (9, 9)), {}, closes(5, "close", groups=3), Sooner).step()
    assert step.groups("admit") == ["0", "1", "2", "3"]
    assert step.seconds == 3


def test_over_sampling_counts_only_what_a_closed_step_could_train():
    """After two seconds four members are done, as many as a batch has, but in four groups: not one could be trained."""
    rig = Rig(lengths((2, 6), (2, 7), (2, 8), (2, 9)), {"oversample": {"rate": 0.5}})
    step = rig.step()
    assert step.groups("admit") == ["0", "1", "2", "3"]
    assert lengths_of(step) == {"0/0": 2, "0/1": 6, "1/0": 2, "1/1": 7}
    assert step.seconds == 7


def test_over_sampling_drops_or_defers_the_rest():
    scripts = lengths((2, 2), (20, 20), (3, 3))
    (drop,) = Rig(scripts, {"oversample": {"rate": 0.3}}).run(1)
    assert (drop.groups("train"), drop.groups("drop"), drop.seconds) == (["0", "2"], ["1"], 3)
    assert drop.accounts["cancelled"] > 0
    one, two = Rig(scripts, {"oversample": {"rate": 0.3, "rest": "defer"}}).run(2)
    assert (one.groups("train"), one.groups("drop"), sorted(one.who("defer"))) == (["0", "2"], [], ["1/0", "1/1"])
    # It is under way with two trajectories: two more groups make three again.
    assert two.groups("admit") == ["3", "4"]
    assert [event["tokens"] for event in two.all("resume")] == [event["tokens"] for event in one.all("defer")]


def test_a_deadline_closes_while_nothing_else_happens():
    """Four of five are done after 2 seconds: the step closes after 3, though no engine says anything then."""
    step = Rig(lengths((2, 2, 2, 2, 50)), {"deadline": {}}, prompts=1, group=5).step()
    assert step.seconds == 3
    assert step.who("cancel") == ["0/4"]


def test_whoever_is_stopped_counts_for_the_deadline():
    """Four of five are stopped after 2 seconds."""
    rig = Rig(
        *(lengths((9, 9, 9, 9, 50)), {"deadline": {}}, stops(2, who=lambda p, m: m < 4)),
        **{"prompts": 1, "group": 5, "watch_every": 1, "patience": 1},
    )
    assert rig.step().seconds == 3


def test_what_waits_for_a_slot_when_the_step_closes_goes_on_in_the_next():
    """At second 6 the members of group 1 come to a boundary, and before anybody gets the slots the step closes."""
    rig = Rig(lengths((2, 2), (9, 9)), {}, strides(2), refills(), closes(6, "defer", groups=2), prompts=1, slots=4)
    one, two = rig.run(2)
    assert [event["e"] for name in ("1/0", "1/1") for event in one.of(name)[-1:]] == ["segment", "segment"]
    assert [(two.label(event["id"]), event["tokens"]) for event in two.all("resume")[:2]] == [("1/0", 6), ("1/1", 6)]


def test_what_a_close_cuts_has_not_come_to_a_boundary():
    scripts = lengths((2, 2), (9, 9), default=50)
    rig = Rig(scripts, {"compaction": {}, "defer": {}}, strides(100), prompts=1, slots=4)
    _, two = rig.run(2)
    assert [(event["segments"], event["boundaries"]) for event in two.of("1/0", "end")] == [(2, 0)]


def test_a_dropped_group_is_made_up_for_in_another_round():
    rig = Rig(lengths(), {}, keeps(lambda group: group.prompt.tokens[0] > 2))
    step = rig.step()
    assert step.groups("drop") == ["0", "1", "2"]
    assert {event["why"] for event in step.all("drop")} == {"not kept"}
    assert (step.groups("train"), rig.stage.view.rounds) == (["3", "4"], 3)


@pytest.mark.parametrize("tables", [{}, {"compaction": {}, "defer": {}}], ids=["rounds", "refill"])
def test_a_step_in_which_everything_is_thrown_away_comes_to_an_end(tables):
    """Also where there is always something under way."""
    rig = Rig(by(lambda p, m: 2 + (3 * p + m) % 5), tables, keeps(lambda group: False))
    with pytest.raises(ConfigError, match=r"no group of this step can be trained.*keeps\)$"):
        rig.run()


# ---- staleness ---------------------------------------------------------------------------------------------------


def test_a_step_does_not_close_while_a_group_is_overdue():
    """Group 0 has tokens of version 0. With a bound of 1 it may be trained in step 2, where they are one version old,
    but not later: step 2 waits for it, and takes it first."""
    rig = Rig(lengths((30, 30), default=2), {}, closes(3, "defer", groups=2), prompts=1, max_staleness=1)
    one, two = rig.run(2)
    assert (one.groups("train"), one.seconds) == (["1"], 3)
    assert (two.groups("train"), two.seconds) == (["0"], 27)
    rig = Rig(lengths((30, 30), default=2), {}, closes(3, "defer", groups=2), prompts=1, max_staleness=2)
    one, two, three = rig.run(3)
    assert (two.seconds, three.groups("train"), three.seconds) == (3, ["0"], 24)


def test_all_groups_that_would_be_too_stale_enter_the_batch():
    rig = Rig(lengths((9, 9), (9, 9), default=2), {}, closes(3, "defer", groups=3), prompts=1, max_staleness=1)
    one, two = rig.run(2)
    assert one.groups("train") == ["2"]
    assert sorted(two.groups("train")) == ["0", "1"]


@pytest.mark.parametrize("bound", [0, 1, 2])
@pytest.mark.parametrize("watch_every", [1, 64])
def test_no_token_is_trained_too_late(bound, watch_every):
    """Neither where tokens are seen at once nor where they are seen when a step closes."""
    scripts = by(lambda p, m: 2 + (7 * p + 5 * m) % 23)
    rig = Rig(
        scripts, {"oversample": {"rate": 0.5, "rest": "defer"}}, stops(99), max_staleness=bound, watch_every=watch_every
    )
    ages = [step.number - 1 - t.version[0] for step in rig.run(8) for t in step.trained.values()]
    assert max(ages) == bound


def test_without_deferral_a_bound_of_zero_holds_nothing_up():
    """What a step leaves is cancelled: it cannot get stale."""
    scripts = lengths((2, 2), (20, 20), (3, 3))
    step = Rig(scripts, {"oversample": {"rate": 0.3}}, stops(99), max_staleness=0, watch_every=1).step()
    assert step.seconds == 3


def test_what_is_overdue_may_run_alone():
    """Step 2 has its batch soon, and waits for group 0: the others leave their slots, and go on in step 4; what step 3
    trains is there when it begins."""

    def others(sprints: bool) -> tuple[int, set[str]]:
        """Tokens that the others have when step 2 closes, and who of them goes on later."""
        sprint = {"sprint": {"missing": 0, "pays": 0.25, "soon": 0}} if sprints else {}
        tables = {"defer": {}, "compaction": {}, **sprint}
        scripts = lengths((30, 30), (2, 2), (4, 4), default=25)
        rig = Rig(scripts, tables, strides(4), prompts=1, slots=4, max_staleness=1)
        one, two, _, four = rig.run(4)
        assert (one.groups("train"), two.groups("train")) == (["1"], ["0"])
        tokens = {two.label(event["id"]): event.get("tokens", 0) for event in two.events if "id" in event}
        others = {label for label in tokens if not label.startswith(("0/", "2/"))}
        return sum(tokens[label] for label in others), others & set(four.who("resume"))

    alone, goes_on = others(sprints=True)
    beside, _ = others(sprints=False)
    assert alone < beside
    assert goes_on


def test_what_makes_way_comes_to_no_harm_where_no_free_slot_is_filled():
    """Without compaction everybody who is at a boundary waits for the next round."""
    tables = {"defer": {}, "sprint": {"missing": 0.5}, "oversample": {"rate": 0.6, "rest": "defer"}}
    rig = Rig(by(lambda p, m: 2 + (7 * p + 5 * m) % 23), tables, strides(3), max_staleness=1)
    ages = [step.number - 1 - t.version[0] for step in rig.run(12) for t in step.trained.values()]
    assert max(ages) == 1


def test_overdue_groups_go_first():
    """Group 0 was admitted before group 1, but begun after it: in step 3 group 1 is overdue, and goes first."""

    class Backwards(shapes()):
        def shape(self, plan, view):
            plan.priority = float(plan.prompt.tokens[0])
            return plan

    scripts = lengths((40, 40), (40, 40), default=2)
    config = {"prompts": 1, "slots": 2, "max_staleness": 2}
    rig = Rig(scripts, {}, Backwards, strides(2), closes(6, "defer", groups=4), **config)
    one, two, three = rig.run(3)
    assert one.who("start") == ["3/0", "3/1", "2/0", "2/1", "1/0", "1/1"]
    assert two.who("start", "resume") == ["1/0", "1/1", "4/0", "4/1", "0/0", "0/1"]
    assert three.who("resume")[:4] == ["1/0", "1/1", "0/0", "0/1"]


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_failure_in_the_middle_of_a_group_costs_its_own_trajectory_alone():
    scripts = by(lambda p, m: Script(6, fails_at=3 if (p, m) == (1, 1) else None))
    rig = Rig(scripts, prompts=3, group=3)
    step = rig.step()
    fail = step.one("fail")
    assert (step.label(fail["id"]), fail["tokens"]) == ("1/1", 0)  # tokens that never came are nobody's
    assert fail["error"] == f"no room for {fail['id']}"
    assert [event["overrun"] for event in step.of("1/1", "left")] == [0]
    assert sorted(step.groups("train")) == ["0", "1", "2"]
    assert sorted(step.trained) == sorted(f"{p}/{m}" for p in range(3) for m in range(3) if (p, m) != (1, 1))


def test_a_failure_does_not_keep_others_from_their_slots():
    """One fails before anything has ended: that does not yet mean that everything will."""
    scripts = by(lambda p, m: Script(5, fails_at=1 if (p, m) == (0, 1) else None))
    rig = Rig(scripts, {"compaction": {"ahead": 2}, "defer": {}}, slots=6, group=3)
    step = rig.step()
    assert len(step.all("fail")) == 1
    assert (step.groups("train"), step.seconds) == (["0", "1"], 5)
    assert step.groups("admit")[2:] == ["2", "3"]  # in the slots that are free from second 5 on


def test_tokens_of_a_failed_trajectory_that_were_seen_are_accounted_for():
    scripts = by(lambda p, m: Script(6, fails_at=3 if (p, m) == (0, 1) else None))
    step = Rig(scripts, {}, strides(2), group=3).step()
    assert (step.label(step.one("fail")["id"]), step.one("fail")["tokens"]) == ("0/1", 2)


def test_a_group_that_failures_leave_one_member_is_made_up_for():
    scripts = by(lambda p, m: Script(6, fails_at=3 if (p, m) == (1, 1) else None))
    step = Rig(scripts).step()
    assert (step.groups("drop"), step.groups("train")) == (["1"], ["0", "2"])
    assert step.one("drop")["why"] == "fewer than two members"


@pytest.mark.parametrize("tables", [{}, {"compaction": {}, "defer": {}}, {"oversample": {}}], ids=str)
@pytest.mark.parametrize("fails_at", [0, 3])
def test_an_engine_that_fails_everything_is_heard(tables, fails_at):
    """Also where there is always something under way."""
    rig = Rig(by(lambda p, m: Script(9, fails_at=fails_at and fails_at + p % 3)), tables)
    with pytest.raises(MemoryError, match="no room for g00000000/0"):
        rig.run()
    assert len(rig.backend.called("generate")) <= 16  # at once, and not when it has tried everything


def test_an_engine_that_fails_later_lets_the_step_end_with_what_there_is():
    scripts = by(lambda p, m: Script(4, fails_at=2 if p else None))
    step = Rig(scripts, prompts=2).step()
    assert step.groups("train") == ["0"]
    assert len(step.all("fail")) > 2


def refuses(rig: Rig, order: str, prompt: int) -> Rig:
    """An engine that raises when it is told this about members of this prompt."""
    backend, real = rig.backend, getattr(rig.backend, order)

    async def raising(names):
        if any(backend.alive[name].spec.tokens[0] == prompt for name in names):
            raise OSError(f"cannot {order}")
        await real(names)

    setattr(backend, order, raising)
    return rig


def test_an_engine_that_cannot_abort_costs_that_trajectory_and_not_the_step():
    """It was stopped and is trained with what it had; its slot is free again."""
    rig = Rig(lengths(default=9), {}, stops(3, who=lambda p, m: (p, m) == (0, 1)), watch_every=1, patience=1)
    step = refuses(rig, "abort", prompt=0).step()
    assert (step.label(step.one("fail")["id"]), step.one("fail")["error"]) == ("0/1", "cannot abort")
    assert {name: len(t.tokens) for name, t in step.trained.items()} == {"0/0": 9, "0/1": 3, "1/0": 9, "1/1": 9}


def test_an_engine_that_cannot_cut_costs_those_trajectories_and_not_the_step():
    """A step of which half is to be deferred."""
    scripts = by(lambda p, m: 3 if p == 1 else 40)
    rig = Rig(scripts, {"defer": {}}, stops(99), prompts=1, watch_every=1, slots=4)
    rig = refuses(rig, "cut", prompt=0)
    rig.mechanisms.finishes[0].starts = lambda view: 2 - len(view.groups) - len(view.ready)
    step = rig.step()
    assert step.groups("train") == ["1"]
    assert sorted(step.label(event["id"]) for event in step.all("fail")) == ["0/0", "0/1"]
    assert {event["error"] for event in step.all("fail")} == {"cannot cut"}


def test_a_scorer_that_raises_costs_its_own_trajectory_alone():
    scripts = by(lambda p, m: Script(4, score_fails=(p, m) == (0, 2)))
    step = Rig(scripts, group=3).step()
    fail = step.one("fail")
    assert (step.label(fail["id"]), fail["tokens"], fail["error"]) == ("0/2", 4, f"cannot score {fail['id']}")
    assert sorted(step.trained) == ["0/0", "0/1", "1/0", "1/1", "1/2"]


def test_a_scorer_that_always_raises_is_heard():
    with pytest.raises(ValueError, match="cannot score g00000000/0"):
        Rig(by(lambda p, m: Script(4, score_fails=True))).run()


def test_nothing_runs_after_a_rollout_was_broken_off():
    """The rig checks that no engine has anything left once the controller is closed."""

    class Breaks(closes()):
        def closes_at(self, view):
            if view.now >= 3:
                raise RuntimeError("broken off")
            return math.inf

    rig = Rig(lengths(default=50), {}, Breaks, stops(99), watch_every=1)
    with pytest.raises(RuntimeError, match="broken off"):
        rig.run()
    assert len(rig.backend.called("generate")) == 4


# ---- the group point ---------------------------------------------------------------------------------------------


def test_a_group_is_asked_when_all_that_are_open_are_at_a_boundary():
    made = prunes(lambda p, m: False)
    rig = Rig(lengths((2, 6, 6)), {}, strides(4), made, prompts=1, group=3)
    step = rig.step()
    ids = {step.label(event["id"]): event["id"] for event in step.all("start")}
    assert rig.mechanisms.by_name["prunes"].asked == [[ids["0/1"], ids["0/2"]]]


def test_a_member_is_stopped_between_segments():
    rig = Rig(lengths((5, 6, 7)), {}, strides(2), prunes(lambda p, m: m == 1), prompts=1, group=3, patience=4)
    step = rig.step()
    (stop,) = step.all("stop")
    # At 2 tokens its patience is not over.
    assert (step.label(stop["id"]), stop["tokens"], stop["reason"], stop["segments"]) == ("0/1", 4, "pruned", 2)
    assert step.trained["0/1"].reward == -1.0
    assert rig.backend.called("release") == [stop["id"]]
    assert not step.of("0/1", "left")  # it had left its slot already
    assert [event["use"] for event in step.one("train")["members"]] == ["trained", "stopped", "trained"]


def test_a_verdict_on_a_member_that_went_with_its_group_counts_for_nothing():
    """One is done, two are to be kept: the first to be stopped makes the group whole, which cancels the other."""
    rig = Rig(lengths((2, 9, 9)), {}, strides(3), shapes(keep=2), prunes(lambda p, m: True), prompts=1, group=3,
              patience=1)  # fmt: skip
    step = rig.step()
    assert (step.who("stop"), step.who("cancel")) == (["0/1"], ["0/2"])


def test_a_reason_that_is_off_prunes_nobody():
    rig = Rig(lengths((5, 6, 7)), {}, strides(2), prunes(lambda p, m: True), prompts=1, group=3, patience=1)
    rig.stage.audit.off.add("pruned")
    assert not rig.step().all("stop")


def test_ghosts_are_no_part_of_their_group():
    """The pruned one runs on for the audit; its boundaries are not its group's."""
    made = prunes(lambda p, m: m == 1)
    rig = Rig(lengths((4, 12, 4)), {}, strides(2), made, prompts=1, group=3, patience=1, audit=1.0)
    one, *_ = rig.run(2)
    assert one.who("stop") == ["0/1"]
    assert all(len(asked) in (2, 3) for asked in rig.mechanisms.by_name["prunes"].asked)


# ---- everything together -----------------------------------------------------------------------------------------


def jumble(seed: int) -> Rig:
    """A recipe made of whatever the dice say, over engines and scorers of which a few fail."""
    rng = random.Random(seed)

    def script(prompt: int, member: int) -> Script:
        own = random.Random(f"{seed} {prompt} {member}")
        return Script(
            length=own.choice((1, 2, 3, 5, 8, 13, 21, 60)),
            reward=float(own.random() < 0.4),
            fails_at=own.randrange(9) if own.random() < 0.05 else None,
            score_s=own.choice((0.0, 0.0, 1.0, 4.0)),
            score_fails=own.random() < 0.03,
        )

    finish = rng.choice(
        [
            {},
            {"defer": {}},
            {"oversample": {"rate": 0.3}},
            {"oversample": {"rate": 0.3, "rest": "defer"}},
            {"deadline": {}},
            {"deadline": {}, "defer": {}},
            {"tail_batch": {}},
            {"dynamic": {}},
        ]
    )
    stride = rng.choice([{}, {"fixed": {"segments": 6}}, {"remainder": {}}, {"unfinished": {}}, {"pyramid": {}}])
    lane = rng.choice([{}, {"compaction": {}}, {"compaction": {}, "router": {"warmup_steps": 1}}, {"buckets": {}}])
    some = lambda prompt, member: (prompt + member) % 3 == 0
    rules = ("penalty", "group_min", "zero", "mask")
    more = rng.sample(
        [
            stops(4, rng.choice(rules), who=some),
            prunes(lambda p, m: (p + m) % 4 == 1, rng.choice(rules)),
            shapes(size=5, keep=3),
            Mover,
            keeps(lambda group: group.prompt.tokens[0] % 5 != 0),
        ],
        rng.randrange(4),
    )
    return Rig(
        script,
        {**lane, **stride, **finish},
        *more,
        engines=2,
        slots=rng.choice((2, 5, 40)),
        pool=12,
        prompts=3,
        group=4,
        max_tokens=40,
        watch_every=rng.choice((1, 4, 64)),
        patience=rng.choice((None, 1)),
        audit=rng.choice((0.0, 0.3, 1.0)),
        max_false_kills=rng.choice((0.1, 1.0)),
        max_staleness=rng.choice((0, 1, 4)),
    )


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_combined_the_books_balance_and_no_token_is_trained_too_late(seed):
    """The rest is checked by the rig: slots, tokens, accounts, nothing left running."""
    rig = jumble(seed)
    trained = set()
    for step in rig.run(5):
        for name, trajectory in step.trained.items():
            assert step.number - 1 - trajectory.version[0] <= rig.config.max_staleness
            assert trajectory.id not in trained, f"{name} is trained twice"
            trained.add(trajectory.id)
        assert step.batch
