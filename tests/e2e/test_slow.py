"""What takes minutes: a real model, and the quickstart's promise."""

import pytest

from tests.e2e.conftest import rows, untail

pytestmark = pytest.mark.slow


def test_smollm2_trains_two_steps_on_a_reasoning_gym_task(tmp_path):
    outcome = untail(
        "train",
        "--model=smollm2",
        "--task=chain_sum",
        "--steps=2",
        "--set=task.size=24",
        "--set=task.params={min_terms = 2, max_terms = 2, min_digits = 1, max_digits = 1}",
        "--set=rollout.prompts=4",
        "--set=rollout.group=4",
        "--set=rollout.max_tokens=48",
        "--set=validation.prompts=4",
        "--set=learn.lr=1e-5",
        "--out",
        tmp_path / "run",
        "--json",
    )
    assert outcome.code == 0, outcome.err
    metrics = rows(tmp_path / "run")
    assert [row["step"] for row in metrics] == [1, 2]
    trained = [row["learn"] for row in metrics if row["learn"]["optimizer_steps"]]
    assert all(learn["mismatch_max"] < 1e-4 for learn in trained)


def test_the_quickstart_learns(tmp_path):
    outcome = untail("train", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["score_after"] - outcome.json["score_before"] >= 0.15
    assert outcome.json["ci95_before"][1] < outcome.json["ci95_after"][0]


def test_bench_train_compares_with_trl():
    pytest.importorskip("trl", reason="trl is not installed: `make test-slow` installs it")
    outcome = untail("bench", "train", "--prompts=4", "--group=4", "--max-tokens=64", "--runs=1", "--json")
    assert outcome.code == 0, outcome.err
    assert {row["system"] for row in outcome.json["rows"]} == {"untail", "trl"}


def test_bench_draft_compares_strategies():
    options = ["--model=tiny", "--batch=2", "--length=12", "--runs=1", "--strategies=history 2,adaptive 2,bandit"]
    outcome = untail("bench", "draft", *options, "--json")
    assert outcome.code == 0, outcome.err
    rows = {row["strategy"]: row for row in outcome.json["rows"]}
    assert list(rows) == ["off", "history 2", "adaptive 2", "bandit"]
    assert all(row["tok_s"] > 0 and row["batch"] == 2 for row in rows.values())
    assert rows["off"]["accept_len"] == 0
    assert rows["adaptive 2"]["accept_len"] > 0
