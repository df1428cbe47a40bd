"""Every figure of a step against its definition, on events few enough to compute it by hand."""

import json

import pytest
from tests.helpers.events import Log, member

from untail.observe.interval import mean_interval, wilson
from untail.observe.metrics import step_metrics


@pytest.fixture
def log() -> Log:
    log = Log()
    log.begin(step=3, t=0)
    return log


def plain_step(log: Log) -> dict:
    """Two groups of two; the slots are two, and the longest takes the whole rollout."""
    log.whole("a0", 0, 2, 20, 1.0)
    log.start("a1", 0)
    log.end("a1", 10, 100, end="length")
    log.score("a1", 10, 0.0)
    log.start("b0", 2)
    log.end("b0", 3, 10)
    log.score("b0", 3, 0.0, failure="timeout: after 2 s")
    log.whole("b1", 3, 6, 30, 0.0)
    log.train(10, member("a0", 20, 1.0), member("a1", 100, 0.0))
    log.train(10, member("b0", 10, 0.0), member("b1", 30, 0.0))
    log.over(10, 14, 16, generated=160, busy_s=8.0, computed=200, loss=0.25, logprob_s=1.0, update_s=2.0)
    return step_metrics(log.events, concurrency=2)


def test_a_plain_step(log):
    row = plain_step(log)
    assert (row["step"], row["tokens"], row["prompt_tokens"], row["trajectories"]) == (3, 160, 20, 4)
    assert (row["reward"], row["pass1"]) == (0.25, 0.25)
    assert (row["len_mean"], row["len_p50"], row["len_p99"], row["len_max"]) == (40, 25, 100, 100)
    assert row["entropy"] == 0.5
    assert row["ends"] == {"stop": 3, "length": 1}
    assert row["score_failures"] == {"timeout": 1}
    assert row["throughput"] == (160 + 20) / 16
    assert row["samples_per_s"] == 4 / 16
    assert (row["effective_tokens"], row["ett"]) == (120, 120 / 16)  # group a alone has variance
    assert row["etr"] == 20 / 160
    assert row["slot_bubble"] == pytest.approx(1 - (2 + 10 + 1 + 3) / (2 * 10))
    assert row["tail_share"] == 0.0  # nine tenths of four are all four
    assert row["tail_utilisation"] is None
    assert row["device_bubble"] == pytest.approx(1 - (8 + 4) / 16)
    assert (row["wall_s"], row["rollout_s"], row["update_s"]) == (16, 10, 4)
    assert row["learn"] == {"loss": 0.25, "logprob_s": 1.0, "update_s": 2.0}
    assert (row["bad_generation"], row["pruning"], row["preemption"]) == (0.0, {}, 0.0)
    assert row["accounts"]["unaccounted"] == 0


def test_a_row_is_the_same_when_it_comes_back_from_a_file(log):
    log.stop("c0", 1, 5, "loop", segments=2)
    row = plain_step(log)
    assert json.loads(json.dumps(row)) == row


def test_the_tail_begins_when_nine_tenths_of_what_is_trained_have_finished(log):
    for number in range(10):
        log.whole(f"a{number}", 0, 100 if number == 9 else number + 1, 10, number % 2)
    log.whole("b0", 0, 50, 10, 0.0)  # not trained in this step: it does not count
    log.train(100, *(member(f"a{number}", 10, number % 2) for number in range(10)))
    log.over(100, 100, 100, generated=110, carried=10)
    row = step_metrics(log.events, 11, engines=2)
    assert row["tail_share"] == pytest.approx((100 - 9) / 100)
    assert row["tail_utilisation"] == pytest.approx(0.5)  # one of the two engines runs all the while


def test_what_finished_in_an_earlier_step_had_finished_at_the_start(log):
    log.whole("a8", 0, 4, 10, 0.0)
    log.start("a9", 0)
    log.stop("a9", 8, 10, "loop")
    log.left("a9", 10)
    earlier = [member(f"a{number}", 10, 0.0) for number in range(8)]
    log.train(10, *earlier, member("a8", 10, 0.0), member("a9", 10, -1.0, "stopped"))
    log.over(10, 10, 10, generated=20)
    assert step_metrics(log.events, 2)["tail_share"] == pytest.approx((10 - 4) / 10)


def mixed_step(log: Log) -> dict:
    log.train(5, member("a0", 10, 1.0), member("a1", 20, 0.0), member("a2", 40, -1.0, "stopped"))
    log.train(5, member("b0", 7, 0.5), member("b1", 9, 0.5), member("b2", 5, 1.0, "masked"))
    log.over(5, 8, 10, generated=200)
    return step_metrics(log.events, 2)


def test_effective_is_what_ran_to_its_end_and_has_an_advantage(log):
    row = mixed_step(log)
    assert row["effective_tokens"] == 10  # a1 has the mean of a; b's mean is 0.5 without the masked one
    assert row["ett"] == 10 / 10
    assert row["rewarded_tokens"] == 10 + 7 + 9
    assert row["etr"] == 26 / 200


def test_masked_members_are_not_learned_from_and_stopped_ones_did_not_pass(log):
    row = mixed_step(log)
    assert row["trajectories"] == 5
    assert row["reward"] == pytest.approx((1 + 0 - 1 + 0.5 + 0.5) / 5)
    assert row["pass1"] == pytest.approx((1 + 0 + 0 + 0.5 + 0.5 + 0) / 6)
    assert (row["len_mean"], row["len_max"]) == (pytest.approx(86 / 5), 40)


def test_a_slot_is_held_from_start_or_resume_until_it_is_left(log):
    log.start("a0", 1)
    log("segment", 3, id="a0", tokens=10, why="boundary")
    log("resume", 5, id="a0", tokens=10, engine=0, slot=1, lane="all")
    log("defer", 9, id="a0", tokens=20)
    log.start("a1", 0)
    log.stop("a1", 2, 10, "loop")  # still in its slot: the engine has to let go of it
    log.left("a1", 4, overrun=1)
    log.start("a2", 0)
    log.cancel("a2", 3, 10)
    log.left("a2", 3)
    log.cancel("a3", 3, 0)  # it never had one
    log.start("a4", 8)  # nobody says that it left: the rollout's end is the end of it
    log.train(10, member("b0", 5, 0.0), member("b1", 5, 1.0))
    log.over(10, 10, 10, generated=30)
    held = (3 - 1) + (9 - 5) + 4 + 3 + 2
    assert step_metrics(log.events, 4)["slot_bubble"] == pytest.approx(1 - held / (4 * 10))


def test_whoever_used_up_no_stride_ended_in_its_first_segment(log):
    for name, boundaries in (("a0", 0), ("a1", 0), ("a2", 1), ("a3", 3)):
        log.start(name, 0)
        same = {"tokens": 9, "prompt_tokens": 1, "end": "stop", "entropy": 1.0, "predicted": None}
        log("end", 1, id=name, boundaries=boundaries, **same)
    log.train(1, *(member(f"a{n}", 9, 1.0) for n in range(4)))
    log.over(1, 1, 1, generated=36)
    assert step_metrics(log.events, 4)["first_segment"] == 0.5


def test_slots_that_are_never_empty_have_no_bubble_and_not_a_negative_one(log):
    for name, begin, end in (("a0", 0, 0.3), ("a1", 0.3, 0.9), ("a2", 0.9, 1.7)):
        log.whole(name, begin, end, 10, 1.0)
    log.train(1.7, *(member(f"a{n}", 10, 1.0) for n in range(3)))
    log.over(1.7, 1.7, 1.7, generated=30, busy_s=1.8)
    row = step_metrics(log.events, concurrency=1)
    assert (f"{row['slot_bubble']:.1%}", f"{row['device_bubble']:.1%}") == ("0.0%", "0.0%")


def test_what_was_thrown_away_and_why(log):
    for number in range(8):
        log.start(f"a{number}", 0)
    log.stop("a0", 2, 100, "loop", segments=2)
    log.left("a0", 2, overrun=4)
    log.stop("a1", 2, 50, "loop", segments=2)
    log.stop("a2", 2, 30, "loop", segments=3)
    log.stop("a3", 2, 20, "collapse")
    log.cancel("a4", 2, 60)
    log.cancel("a3", 2, 20)  # its group was cancelled after it was stopped: it counts once
    log.left("a7", 2, overrun=9)  # it failed
    log.train(10, member("b0", 5, 0.0), member("b1", 5, 1.0))
    log.over(10, 10, 10, generated=1000)
    row = step_metrics(log.events, 8)
    assert row["bad_tokens"] == 100 + 4 + 50 + 30 + 20 + 60
    assert row["bad_generation"] == 264 / 1000
    assert row["pruning"] == {
        "loop": {"stopped": 3, "started": 8, "by_segment": {"2": 2, "3": 1}},
        "collapse": {"stopped": 1, "started": 8, "by_segment": {"1": 1}},
    }


def test_what_a_copy_shares_counts_for_its_parent(log):
    """A copy of a0 at 10 tokens, one that was stopped at 14 and one that was cancelled at 12."""
    log.start("a0", 0)
    log("fork", 3, id="a1", parent="a0", group="a", tokens=10, temperature=1.2, engine=0)
    log("fork", 3, id="a2", parent="a0", group="a", tokens=10, temperature=1.4, engine=0)
    log("fork", 3, id="a3", parent="a0", group="a", tokens=10, temperature=1.5, engine=0)
    log("stop", 5, id="a2", group="a", tokens=14, made=4, reason="tournament", segments=2, audited=False)
    log("cancel", 5, id="a3", group="a", tokens=12, made=2, why="group", audited=False)
    members = [member("a0", 20, 0.0), {**member("a1", 25, 1.0), "made": 15}]
    log.train(10, *members, {**member("a2", 14, -1.0, "stopped"), "made": 4})
    log.over(10, 10, 10, generated=20 + 15 + 4 + 2)
    row = step_metrics(log.events, 8)
    assert (row["started"], row["forks"]) == (4, 3)
    assert row["rewarded_tokens"] == 15
    assert row["effective_tokens"] == 15
    assert row["bad_tokens"] == 4 + 2
    assert row["pruning"]["tournament"] == {"stopped": 1, "started": 4, "by_segment": {"2": 1}}
    assert row["len_max"] == 25
    assert (row["accounts"]["trained"], row["accounts"]["stopped"], row["accounts"]["cancelled"]) == (35, 4, 2)
    assert row["accounts"]["unaccounted"] == 0


def test_groups_whose_rewards_do_not_differ(log):
    log.train(10, member("a0", 5, 1.0), member("a1", 5, 1.0), member("a2", 5, 0.0, "masked"))
    log.train(10, member("b0", 5, 1.0), member("b1", 5, 0.0))
    log.train(10, member("c0", 5, 0.0), member("c1", 5, 0.0))
    log.train(10, member("d0", 5, 0.0), member("d1", 5, -1.0, "stopped"))
    log("partial", 5, id="a0", failure="timeout")
    log("partial", 5, id="a1", failure="raised: ValueError: no")
    log.over(10, 10, 10, generated=50)
    row = step_metrics(log.events, 8)
    assert row["zero_variance"] == 0.5
    assert row["partial_failures"] == {"timeout": 1, "raised": 1}


def test_the_device(log):
    log.train(4, member("a0", 5, 0.0), member("a1", 5, 1.0))
    load = {"computed": 500, "recomputed": 50, "preemptions": 3, "kv_used": 0.75, "peak_mem": 1 << 20}
    log.over(4, 6, 10, generated=10, busy_s=7.0, **load)
    row = step_metrics(log.events, 2, engines=2)
    assert row["device_bubble"] == pytest.approx(1 - (7 + 2) / (2 * 10))
    assert (row["preemption"], row["preemptions"]) == (0.1, 3)
    assert (row["kv_used"], row["peak_mem"]) == (0.75, 1 << 20)


def test_staleness_counts_tokens(log):
    log.begin(step=6, t=0)  # trained from weights of version 5
    fresh, old = member("a0", 30, 1.0, versions=(5, 5)), member("a1", 10, 0.0, versions=(2, 4))
    log.train(4, fresh, old, member("a2", 99, 0.0, "masked", versions=(0, 0)))
    log.over(4, 6, 10, generated=10)
    staleness = step_metrics(log.events[1:], 2)["staleness"]
    assert staleness == {"mean": pytest.approx(10 * (3 + 1) / 2 / 40), "max": 3}


def test_predictions_against_what_came(log):
    log.start("a0", 0)
    log.end("a0", 1, 100, predicted=50.0)
    log.end("a1", 1, 10, predicted=40.0)
    log.end("a2", 1, 30)  # nothing was known
    log.train(2, member("a0", 100, 1.0), member("a1", 10, 0.0))
    log.over(2, 2, 2, generated=140)
    prediction = step_metrics(log.events, 2)["prediction"]
    assert prediction == {"auc_top10": 1.0, "mae": 40.0, "within_2x": 0.5, "n": 2}


def test_phases_share_out_the_wall(log):
    log.start("a0", 1)
    log.end("a0", 4, 10)
    log.start("a1", 2)
    log.end("a1", 6, 10)
    log.score("a0", 5, 1.0)
    log.score("a1", 8, 0.0)  # two seconds that nothing but this score is waited for
    log.train(9, member("a0", 10, 1.0), member("a1", 10, 0.0))
    log.over(9, 14, 16, generated=20, logprob_s=1.0, update_s=3.0)
    phases = step_metrics(log.events, 2)["phases"]
    shares = {"rollout_s": 5, "score_s": 2, "tool_s": 0, "logprob_s": 1, "update_s": 3, "sync_s": 1, "idle_s": 4}
    assert phases == pytest.approx(shares)
    assert sum(phases.values()) == pytest.approx(16)


def test_what_the_learner_did_during_the_rollout_is_no_phase_of_its_own_and_keeps_its_device_busy(log):
    log.start("a0", 0)
    log.end("a0", 9, 10)
    log.train(9, member("a0", 10, 1.0))
    log.over(9, 14, 16, generated=20, busy_s=9.0, logprob_s=1.0, update_s=3.0, early_s=2.0)
    row = step_metrics(log.events, 2, devices=2)
    shares = {"rollout_s": 9, "score_s": 0, "tool_s": 0, "logprob_s": 0.5, "update_s": 1.5, "sync_s": 3, "idle_s": 2}
    assert row["phases"] == pytest.approx(shares)
    assert sum(row["phases"].values()) == pytest.approx(16)
    assert row["device_bubble"] == pytest.approx(1 - (9 + 5 + 2) / 32)


def test_a_step_without_anything_in_it_has_no_means(log):
    log.over(0, 0, 0, generated=0)
    row = step_metrics(log.events, 2)
    for name in ("reward", "pass1", "len_mean", "len_p50", "len_max", "entropy"):
        assert row[name] is None
    assert (row["etr"], row["ett"], row["slot_bubble"], row["tail_share"], row["device_bubble"]) == (0, 0, 0, 0, 0)


def test_intervals():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10)[0] == pytest.approx(0.0, abs=1e-9)
    assert mean_interval([0.0, 1.0] * 50) == wilson(0.5, 100)
    low, high = mean_interval([-1.0, 3.0] * 50)
    assert low < 1.0 < high
    assert high - low == pytest.approx(2 * 1.96 * 2.01 / 10, rel=1e-2)


def test_turns_and_waits_for_tools(log):
    """Seconds in which nothing but a tool was waited for are a phase of their own."""
    log.events[0]["parked"] = ["c0"]
    log("reply", 1, id="c0", tokens=3, reply=2, turn=1, seconds=4.0)
    log("reply", 2, id="ghost", tokens=3, reply=2, turn=1, seconds=4.0)  # nobody waits for it
    log("resume", 1, id="c0", engine=0, slot=1, lane="all", tokens=3)
    log.start("a0", 1)
    log("park", 3, id="a0", tokens=10, turn=1)
    log("defer", 3, id="c0", tokens=5)
    log("reply", 6, id="a0", tokens=10, reply=3, turn=1, seconds=3.0)
    log("resume", 6, id="a0", engine=0, slot=0, lane="all", tokens=10)
    tools = {"turns": 2, "tool_s": 3.0, "tool_failure": None}
    same = {"group": "a", "prompt_tokens": 5, "versions": [0, 0], "entropy": 0.5, "predicted": None, "end": "stop"}
    log("end", 8, id="a0", tokens=20, **same, **tools)
    log.start("b0", 6)
    log("park", 7, id="b0", tokens=1, turn=1)
    log("end", 9, id="b0", tokens=1, **same, turns=1, tool_s=2.0, tool_failure="raised: OSError: no disk")
    log.train(10, member("a0", 20, 1.0), member("b0", 1, 0.0))
    log.over(10, 10, 10, generated=20)
    row = step_metrics(log.events, 2)
    assert (row["turns"], row["tool_wait_s"], row["tool_failures"]) == (1.5, 5.0, {"raised": 1})
    held = (3 - 1) + (3 - 1) + (8 - 6) + (7 - 6)
    assert row["slot_bubble"] == pytest.approx(1 - held / 20)
    phases = row["phases"]
    assert (phases["rollout_s"], phases["tool_s"], phases["idle_s"]) == pytest.approx((4, 1 + 3 + 1, 1))


def test_without_an_environment_a_trajectory_is_one_turn(log):
    log.whole("a0", 0, 4, 10, 1.0)
    log.train(10, member("a0", 10, 1.0), member("a1", 5, 0.0))
    log.over(10, 10, 10, generated=10)
    row = step_metrics(log.events, 2)
    assert (row["turns"], row["tool_wait_s"], row["tool_failures"]) == (1, 0, {})
