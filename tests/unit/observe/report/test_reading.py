"""Runs that are whole, going on, killed, or not runs of ours."""

from pathlib import Path

import pytest
from tests.helpers.lively import Lively

from untail.errors import UserError
from untail.observe.figures import run_figures
from untail.observe.report import reading
from untail.observe.report.reading import choose_steps, draw, read
from untail.observe.report.runs import Found


def found(path: Path, named: bool = True) -> Found:
    return Found("mine", path, named)


@pytest.fixture
def events(tmp_path) -> Path:
    run = Lively(slots=6, groups=3, size=3)
    run.step(1)
    run.step(2)
    return run.write(tmp_path)


def test_figures_are_those_of_the_events(events):
    (run,), notes = read([found(events)])
    assert run.figures == run_figures(events)
    assert [row["step"] for row in run.rows] == [1, 2]
    assert (run.concurrency, notes) == (6, [])
    assert sorted(draw([run])) == [1, 2]


def test_a_last_line_that_was_cut_short_is_a_note(events):
    with events.open("a") as file:
        file.write('{"e": "step", "t"')
    (run,), notes = read([found(events)])
    assert len(run.rows) == 2
    assert notes == ["mine: the last line of its events was cut short, as by a crash, and is left out."]


def test_a_run_that_is_going_on_is_a_note(tmp_path):
    run = Lively(slots=6, groups=3, size=3)
    run.log.events[0]["recipe"] = {"steps": 40}
    run.step(1)
    run.log.begin(2, run.t)
    (read_back,), notes = read([found(run.write(tmp_path))])
    assert len(read_back.rows) == 1
    assert len(notes) == 1
    assert "1 of 40 steps so far" in notes[0]
    assert sorted(draw([read_back])) == [1]


WRONG = {
    "empty": ("", "holds no event"),
    "only a cut line": ('{"e": "run"', "holds no event"),
    "another schema": (
        '{"e": "run", "t": 0, "schema": 9, "concurrency": 4}\n',
        "events of schema 9, but this untail reads 2 or 3",
    ),
    "not ours": ('{"e": "hello"}\n', "does not begin with a run event"),
    "not JSON": ('{"e": "run", "t": 0, "schema": 2, "concurrency": 4}\nhello\n', "line 2 is not an event"),
    "not an object": ("[1]\n", "line 1 is not an event"),
    "not text": (b"\xff\xfe\n", "line 1 is not an event"),
    "no step": ('{"e": "run", "t": 0, "schema": 2, "concurrency": 4}\n', "has no whole step yet"),
    "a step without an end": (
        '{"e": "run", "t": 0, "schema": 2, "concurrency": 4}\n{"e": "step", "t": 1, "step": 1}\n{"e": "done"}\n',
        "does not hold together",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_refused_by_name(case, tmp_path):
    content, sentence = WRONG[case]
    path = tmp_path / "events.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=sentence) as error:
        read([found(path)])
    assert str(path) in str(error.value)


def test_an_event_that_lacks_a_field_is_refused_when_it_is_drawn(events):
    events.write_text(events.read_text().replace('"slot"', '"slto"', 1))
    with pytest.raises(UserError, match=r"does not hold together \(KeyError: 'slot'\)"):
        draw(read([found(events)])[0])


def test_a_bad_run_of_a_comparison_is_a_note_unless_all_are(events, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("")
    runs, notes = read([found(bad, named=False), found(events, named=False)])
    assert len(runs) == 1
    assert notes[0].startswith("mine is left out: ")
    with pytest.raises(UserError, match="holds no event"):
        read([found(bad, named=False)])


def test_of_many_steps_some_are_drawn_with_the_longest_tails_among_them(tmp_path, monkeypatch):
    run = Lively(slots=6, groups=1, size=3)
    for step in range(1, 31):
        run.step(step)
    (read_back,), _ = read([found(run.write(tmp_path))])
    assert choose_steps([read_back]) == list(range(1, 31))
    monkeypatch.setattr(reading, "MOST", sum(read_back.lengths.values()) // 3)
    chosen = choose_steps([read_back])
    longest = max(read_back.rows, key=reading.tail_s)["step"]
    assert len(chosen) == 10
    assert {1, longest, 30} <= set(chosen)
