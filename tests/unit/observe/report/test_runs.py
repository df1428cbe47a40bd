"""Which runs a report is about, and what they are called."""

import pytest

from untail.errors import UserError
from untail.observe.report.runs import find_runs


def folders(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "events.jsonl").write_text("")
    return root


def labels(*given) -> list[str]:
    return [run.label for run in find_runs(given)]


def test_a_run_is_itself(tmp_path):
    folders(tmp_path, "mine")
    (run,) = find_runs([tmp_path / "mine"])
    assert (run.label, run.events, run.is_named) == ("mine", tmp_path / "mine" / "events.jsonl", True)


def test_a_comparison_is_all_its_runs_in_its_order(tmp_path):
    folders(tmp_path, "10-untail-seed0", "2-april-seed0", "1-grpo-seed0")
    assert labels(tmp_path) == ["grpo", "april", "untail"]
    assert not any(run.is_named for run in find_runs([tmp_path]))


def test_labels_keep_what_tells_runs_apart(tmp_path):
    seeds = folders(tmp_path / "seeds", "1-grpo-seed0", "1-grpo-seed1")
    assert labels(seeds) == ["grpo-seed0", "grpo-seed1"]
    twice = folders(tmp_path / "twice", "1-grpo-seed0", "2-grpo-seed0")
    assert labels(twice) == ["1-grpo-seed0", "2-grpo-seed0"]
    folders(tmp_path, "a/run", "b/run")
    assert labels(tmp_path / "a" / "run", tmp_path / "b" / "run") == ["a/run", "b/run"]


def test_a_run_named_twice_is_one(tmp_path):
    folders(tmp_path, "1-grpo-seed0")
    assert labels(tmp_path, tmp_path / "1-grpo-seed0") == ["grpo"]


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, sentence in (
        ("nowhere", "there is no such folder"),
        ("file", "is a file; give the run's folder"),
        ("empty", "holds no run"),
    ):
        with pytest.raises(UserError, match=sentence):
            find_runs([tmp_path / name])
