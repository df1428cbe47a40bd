"""What a step looked like, from events written by hand."""

import pytest
from tests.helpers.events import Log, member
from tests.helpers.lively import Lively

from untail.observe.report.timeline import KINDS, Lives, Picture, columns
from untail.observe.step import StepEvents


def pictures(log: Log) -> list[Picture]:
    lives = Lives()
    return [picture for event in log.events if (picture := lives.hear(event)) is not None]


def spans(picture: Picture) -> list[tuple]:
    return [(span.id, span.slot, span.begin, span.end, span.kind) for span in picture.spans]


@pytest.fixture
def log() -> Log:
    log = Log()
    log.run(concurrency=2)
    log.begin(1, 10)
    return log


def over(log: Log, t: float) -> Picture:
    log.over(t, t + 1, t + 2, generated=0)
    return pictures(log)[-1]


def resume(log: Log, name: str, t: float, tokens: int, slot: int = 0) -> None:
    log("resume", t, id=name, engine=0, slot=slot, lane="all", tokens=tokens)


def test_from_start_to_end(log):
    log.whole("a0", 10, 14, 40, 1.0)
    log.start("a1", 11)
    log.end("a1", 15, 99, end="length")
    log.train(15, member("a0", 40, 1.0), member("a1", 99, 0.0, use="masked"))
    picture = over(log, 15)
    assert spans(picture) == [("a0", 0, 10, 14, "end"), ("a1", 0, 11, 15, "length")]
    assert [(life.tokens, life.reward, life.use) for life in picture.lives] == [
        (40, 1.0, "trained"),
        (99, 0.0, "masked"),
    ]
    assert (picture.began, picture.rolled_out, picture.done) == (10, 15, 17)


def test_a_segment_and_a_deferral_over_two_steps(log):
    log("admit", 10, group="a", prompt="hash", text="What?")
    log.start("a0", 10)
    log("segment", 11, id="a0", tokens=10, why="boundary")
    resume(log, "a0", 12, 10)
    log("defer", 13, id="a0", tokens=20)
    first = over(log, 13)
    assert spans(first) == [("a0", 0, 10, 11, "segment"), ("a0", 0, 12, 13, "defer")]
    log.begin(2, 20, carried=20)
    resume(log, "a0", 20, 20, slot=1)
    log.end("a0", 22, 40)
    log.score("a0", 22, 1.0)
    second = over(log, 22)
    assert spans(second) == [("a0", 1, 20, 22, "end")]
    assert second.prompts == {"a": "What?"}
    assert (first.lives[0].kind, first.lives[0].tokens) == ("defer", 20)  # as it was then
    assert (second.lives[0].kind, second.lives[0].tokens) == ("end", 40)


def test_a_stop_holds_its_slot_until_it_has_left(log):
    log.start("a0", 10)
    log.stop("a0", 12, 20, "loop")
    log.left("a0", 13, overrun=5)
    picture = over(log, 14)
    assert spans(picture) == [("a0", 0, 10, 13, "stop")]
    assert picture.lives[0].why == "loop"


def test_a_stop_at_a_boundary_colours_the_stay_that_ended_there(log):
    log.start("a0", 10)
    log("segment", 12, id="a0", tokens=20, why="boundary")
    log.stop("a0", 13, 20, "duplicate", segments=1)
    assert spans(over(log, 14)) == [("a0", 0, 10, 12, "stop")]


def test_what_runs_on_for_the_audit_is_another_span_also_in_the_next_step(log):
    log.start("a0", 10)
    log.cancel("a0", 12, 20, audited=True)
    log("defer", 13, id="a0", tokens=30)
    log.train(13, member("a1", 1, 0.0))
    assert spans(over(log, 13)) == [("a0", 0, 10, 12, "cancel"), ("a0", 0, 12, 13, "audit")]
    log.begin(2, 20)
    resume(log, "a0", 20, 30)
    log.left("a0", 22)
    log.audit("a0", 22, "cancelled", 50, 30, 1.0)
    picture = over(log, 23)
    assert spans(picture) == [("a0", 0, 20, 22, "audit")]
    assert picture.lives[0].kind == "cancel"
    assert "let run on, it had 50 tokens and reward 1" in picture.lives[0].why


def test_a_failure_says_why_and_one_after_the_end_is_none(log):
    log.start("a0", 10)
    log("fail", 11, id="a0", group="a", tokens=7, error="out of memory")
    log.left("a0", 11)
    log.whole("a1", 10, 12, 5, 1.0)
    log("fail", 13, id="a1", group="a", tokens=0, error="late")
    picture = over(log, 14)
    assert [span.kind for span in picture.spans] == ["fail", "end"]
    assert [(life.kind, life.why, life.tokens) for life in picture.lives] == [
        ("fail", "out of memory", 7),
        ("end", "", 5),
    ]


def test_a_fork_is_known_by_its_parent(log):
    log.start("a0", 10)
    log("segment", 12, id="a0", tokens=20, why="boundary")
    log("fork", 12, id="a1", parent="a0", group="a", tokens=20, temperature=1.2, engine=0)
    resume(log, "a1", 13, 20, slot=1)
    log.end("a1", 15, 35)
    picture = over(log, 15)
    assert picture.forks == [("a1", 12)]
    assert spans(picture) == [("a0", 0, 10, 12, "segment"), ("a1", 1, 13, 15, "end")]
    lives = columns(picture)["lives"]
    assert (lives["parent"], lives["at"], lives["tokens"]) == ([-1, 0], [0, 20], [20, 35])


def test_a_wait_for_a_tool_holds_no_slot_and_may_outlast_the_step(log):
    log.start("a0", 10)
    log("park", 11, id="a0", tokens=10, turn=1)
    log("reply", 12, id="a0", tokens=14, reply=4, turn=1, seconds=1.0)
    resume(log, "a0", 12, 14)
    log("park", 13, id="a0", tokens=20, turn=2)
    first = over(log, 15)
    assert spans(first) == [
        ("a0", 0, 10, 11, "segment"),
        ("a0", -1, 11, 12, "wait"),
        ("a0", 0, 12, 13, "segment"),
        ("a0", -1, 13, 15, "wait"),
    ]
    log.begin(2, 20)
    log("reply", 21, id="a0", tokens=22, reply=2, turn=2, seconds=8.0)
    log("end", 21, id="a0", group="a", tokens=22, end="stop", turns=2, tool_failure="timed out")
    second = over(log, 22)
    assert spans(second) == [("a0", -1, 20, 21, "wait")]
    assert (second.lives[0].kind, second.lives[0].why) == ("end", "after 2 turns; its tool gave no reply: timed out")


def test_what_ends_or_is_cancelled_while_it_waits_colours_its_last_stay(log):
    for name in ("a0", "a1"):
        log.start(name, 10)
        log("park", 12, id=name, tokens=10, turn=1)
    log("end", 13, id="a0", group="a", tokens=10, end="stop", turns=1, tool_failure="timed out")
    log.cancel("a1", 14, 10)
    picture = over(log, 15)
    assert spans(picture) == [
        ("a0", 0, 10, 12, "end"),
        ("a1", 0, 10, 12, "cancel"),
        ("a0", -1, 12, 13, "wait"),
        ("a1", -1, 12, 14, "wait"),
    ]
    assert [life.kind for life in picture.lives] == ["end", "cancel"]


def test_a_slot_that_nobody_left_is_held_to_the_end_of_the_rollout(log):
    log.start("a0", 10)
    assert spans(over(log, 14)) == [("a0", 0, 10, 14, "segment")]


def test_a_step_that_is_not_over_is_no_picture(log):
    log.start("a0", 10)
    assert pictures(log) == []


def test_spans_cover_what_the_figures_count_as_running():
    run = Lively(slots=3, groups=4, size=4, tools=False)
    for step in range(1, 7):
        run.step(step)
    drawn = pictures(run.log)
    for step, picture in enumerate(drawn, 1):
        own = StepEvents([event for event in run.log.events if event.get("step") == step])
        counted = sum(end - begin for begin, end in own.slot_spans())
        assert sum(span.end - span.begin for span in picture.spans) == pytest.approx(counted)
    assert {span.kind for picture in drawn for span in picture.spans} >= {"end", "segment", "stop", "cancel", "defer"}


def test_columns_are_numbers_and_indices():
    run = Lively(slots=6, groups=4, size=4)
    run.step(1)
    picture = pictures(run.log)[0]
    stored = columns(picture)
    spans, lives = stored["spans"], stored["lives"]
    assert len(spans["life"]) == len(picture.spans)
    assert {len(column) for column in lives.values()} == {len(picture.lives)}
    for life, kind, begin, end in zip(spans["life"], spans["kind"], spans["begin"], spans["end"], strict=True):
        assert stored["groups"]["name"][lives["group"][life]] == lives["id"][life].split("/")[0]
        assert 0 <= begin <= end <= stored["rolled_out"]
        assert kind < len(KINDS)
    assert lives["text"].count(run.answer) == sum(kind in (0, 1) for kind in lives["kind"])
