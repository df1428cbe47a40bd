"""A run's memory: handed on to a new run, and missed when it is gone."""

import shutil
import sqlite3
from contextlib import closing, contextmanager

import pytest

from tests.e2e.conftest import SMALL, untail


@contextmanager
def opened(path):
    """Closed in the end: the connection is part of a cycle, and would hold its lock until it is collected."""
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def records(path) -> list[tuple]:
    with opened(path) as db:
        return db.execute("SELECT prompt, length, reward, step FROM records ORDER BY id").fetchall()


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_new_run_starts_with_the_history_of_an_earlier_one(named, trained, tmp_path):
    source, folder = trained[0] / "history.sqlite", tmp_path / "run"
    before = records(source)
    history = source if named == "file" else trained[0]
    outcome = untail("train", "--steps=1", *SMALL, f"--set=history={history}", "--out", folder)
    assert outcome.code == 0, outcome.err
    after = records(folder / "history.sqlite")
    assert [row[:3] for row in after[: len(before)]] == [row[:3] for row in before]
    assert {row[3] for row in after[: len(before)]} == {0}  # before the first step
    assert [row[3] for row in after[len(before) :]] == [1] * 16
    assert records(source) == before
    shutil.rmtree(folder / "model")
    resumed = untail("train", "--resume", "--steps=2", "--out", folder)
    assert resumed.code == 0, resumed.err
    assert records(folder / "history.sqlite")[: len(after)] == after


def other_model(path) -> None:
    with opened(path) as db:
        db.execute("UPDATE meta SET value = 'another/model' WHERE key = 'model'")


def newer_format(path) -> None:
    with opened(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'format'")


def other_tokenizer(path) -> None:
    with opened(path) as db:
        db.execute("UPDATE meta SET value = 'another' WHERE key = 'tokenizer'")


BAD = {
    "another model": (other_model, "was made with the model 'another/model', but this run has 'tiny'"),
    "a newer format": (newer_format, "has format 99, but this untail knows formats up to 1; upgrade untail"),
    "nothing there": (lambda path: path.unlink(), "there is no such file; name an earlier run's folder"),
    "an empty file": (lambda path: path.write_bytes(b""), "is empty; name an earlier run's folder"),
    "not a database": (lambda path: path.write_text("text" * 99), "cannot be read as a history"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_history_that_does_not_fit_is_refused_and_leaves_no_run_behind(case, trained, tmp_path):
    spoil, sentence = BAD[case]
    source = tmp_path / "history.sqlite"
    shutil.copy(trained[0] / "history.sqlite", source)
    spoil(source)
    outcome = untail("train", "--steps=1", *SMALL, f"--set=history={source}", "--out", tmp_path / "run")
    assert outcome.code == 2, outcome.err
    (line,) = outcome.lines_of_error
    assert sentence in line
    assert not (tmp_path / "run").exists()


def test_one_of_another_tokenizer_is_ignored_and_that_is_said_once(trained, tmp_path):
    source = tmp_path / "history.sqlite"
    shutil.copy(trained[0] / "history.sqlite", source)
    other_tokenizer(source)
    outcome = untail("train", "--steps=1", *SMALL, f"--set=history={source}", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("was made with the tokenizer 'another'") == 1
    assert "it is ignored" in outcome.err
    assert len(records(tmp_path / "run" / "history.sqlite")) == 16


LOST = {
    "removed": (lambda path: path.unlink(), "is gone; put it back"),
    "emptied": (lambda path: path.write_bytes(b""), "has 0 records where the checkpoint step-000004 was made with 64"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_run_whose_history_is_lost_does_not_go_on_without_a_word(case, trained, tmp_path):
    lose, sentence = LOST[case]
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    lose(folder / "history.sqlite")
    outcome = untail("train", "--resume", "--steps=5", "--out", folder)
    assert outcome.code == 2, outcome.err
    (line,) = outcome.lines_of_error
    assert sentence in line
    assert "start a new run in another folder" in line
