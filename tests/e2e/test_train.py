"""`untail train` from the first step to a model that transformers loads; stopped, killed, resumed."""

import shutil
import signal
import time

import pytest
import torch

from tests.e2e.conftest import SMALL, rows, start, untail
from untail.config import Recipe, parse, read_toml
from untail.observe.metrics import TIMED

DETERMINISTIC = [*SMALL, "--set=deterministic=true"]


def timeless(row):
    """A metrics row without its times."""
    if isinstance(row, dict):
        gone = lambda key: key in TIMED or key.endswith("_s")
        return {key: timeless(value) for key, value in row.items() if not gone(key)}
    return row


def test_a_run_leaves_what_it_promises(trained):
    folder, outcome = trained
    result = outcome.json
    assert {"steps", "wall_s", "tokens", "score_before", "score_after", "ett", "slot_bubble", "tail_share"} <= set(
        result
    )
    assert result["steps"] == 4
    assert result["run_dir"] == str(folder)
    metrics = rows(folder)
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert result["tokens"] == sum(row["tokens"] for row in metrics)
    assert parse(Recipe, read_toml(folder / "recipe.toml"), "").rollout.prompts == 4
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    assert any((folder / "tensorboard").iterdir())
    assert "before" in outcome.err
    assert "after" in outcome.err
    assert "step    4/4" in outcome.err


def test_engine_and_trainer_agree_and_the_first_ratio_is_one(trained):
    for row in rows(trained[0]):
        if row["learn"]["optimizer_steps"]:
            assert row["learn"]["mismatch_max"] < 1e-4
            assert abs(row["learn"]["ratio_mean"] - 1) < 1e-4
            assert row["learn"]["ratio_max_deviation"] < 1e-4


def test_every_trajectory_has_a_life_in_the_events(trained):
    folder, _ = trained
    events = rows(folder, "events.jsonl")
    assert (events[0]["e"], events[0]["schema"]) == ("run", 3)
    for kind in ("start", "end", "score"):
        assert len([event for event in events if event["e"] == kind]) == 4 * 16
    ended = sum(event["tokens"] for event in events if event["e"] == "end")
    assert ended == sum(row["tokens"] for row in rows(folder))


def test_the_model_loads_in_transformers_and_scores(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, _ = trained
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.dtype == torch.float32
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2+3=?"}], return_tensors="pt", return_dict=True
    )
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]
    outcome = untail("eval", "--model", folder / "model", "--task=arithmetic", "--n=8", "--max-tokens=48", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["n"] == 8
    low, high = outcome.json["ci95"]
    assert low <= outcome.json["score"] <= high


def test_the_same_seed_is_the_same_run(trained, tmp_path):
    again = untail("train", "--steps=4", *DETERMINISTIC, "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert [timeless(row) for row in rows(tmp_path / "again")] == [timeless(row) for row in rows(trained[0])]
    other = untail("train", "--steps=2", *DETERMINISTIC, "--set=seed=1", "--out", tmp_path / "other")
    assert other.code == 0, other.err
    assert timeless(rows(tmp_path / "other")[0]) != timeless(rows(trained[0])[0])


def wait_for(path, lines: int, process) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.01)


def test_killed_after_a_checkpoint_and_resumed_it_is_the_same_run(trained, tmp_path):
    folder = tmp_path / "killed"
    process = start("train", "--steps=4", *DETERMINISTIC, "--out", folder)
    wait_for(folder / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (folder / "checkpoints" / "step-000002").exists()
    resumed = untail("train", "--resume", "--out", folder, "--json")
    assert resumed.code == 0, resumed.err
    assert [timeless(row) for row in rows(folder)] == [timeless(row) for row in rows(trained[0])]
    for key in ("score_before", "score_after", "tokens"):
        assert resumed.json[key] == trained[1].json[key]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_saves_the_last_whole_step(trained, tmp_path, number):
    folder = tmp_path / "stopped"
    process = start("train", "--steps=4", *DETERMINISTIC, "--set=checkpoint_every=100", "--out", folder)
    wait_for(folder / "metrics.jsonl", 1, process)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert f"untail train --resume --out {folder}" in error
    saved = list((folder / "checkpoints").iterdir())
    assert len(saved) == 1
    resumed = untail("train", "--resume", "--out", folder)
    assert resumed.code == 0, resumed.err
    assert [timeless(row) for row in rows(folder)] == [timeless(row) for row in rows(trained[0])]


def test_resume_may_go_further_but_not_elsewhere(trained, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder)
    other = untail("train", *DETERMINISTIC, "--set=learn.lr=1e-5", "--steps=4", "--resume", "--out", folder)
    assert other.code == 2
    assert "learn.lr = 1e-05, but the run" in other.err
    fewer = untail("train", "--resume", "--steps=3", "--out", folder)
    assert fewer.code == 2
    assert "has done 4 already" in fewer.err
    further = untail("train", "--resume", "--steps=5", "--out", folder, "--json")
    assert further.code == 0, further.err
    assert [row["step"] for row in rows(folder)] == [1, 2, 3, 4, 5]


def test_one_folder_has_one_run_at_a_time(tmp_path):
    folder = tmp_path / "busy"
    process = start("train", "--steps=50", *DETERMINISTIC, "--out", folder)
    wait_for(folder / "metrics.jsonl", 1, process)
    second = untail("train", "--resume", "--out", folder)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert second.code == 2
    assert f"a run is going on in {folder}" in second.err


def test_a_damaged_checkpoint_is_one_sentence(trained, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder)
    for damage in ("[]", '{"step": 1, "state": {}}', "{"):
        (folder / "checkpoints" / "step-000004" / "state.json").write_text(damage)
        outcome = untail("train", "--resume", "--out", folder)
        assert outcome.code == 2, outcome.err
        assert "remove that folder to resume from the one before it" in outcome.err


def test_stopped_in_its_last_validation_a_run_can_still_be_finished(trained, tmp_path):
    folder = tmp_path / "stopped"
    big = ["--set=validation.task.size=200", "--set=validation.prompts=200"]
    process = start("train", "--steps=1", *DETERMINISTIC, *big, "--out", folder)
    wait_for(folder / "metrics.jsonl", 1, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    resumed = untail("train", "--resume", "--out", folder, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["steps"] == 1
    assert 0 <= resumed.json["score_after"] <= 1


@pytest.mark.slow
def test_stopped_in_its_first_validation_a_run_starts_anew(tmp_path):
    folder = tmp_path / "stopped"
    big = ["--set=validation.task.size=200", "--set=validation.prompts=200"]
    process = start("train", "--steps=1", *DETERMINISTIC, *big, "--out", folder)
    wait_for(folder / "events.jsonl", 1, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert untail("train", "--resume", "--out", folder).code == 0


def test_a_stopped_step_leaves_no_trace_in_the_events(tmp_path):
    folder = tmp_path / "stopped"
    process = start("train", "--steps=3", *DETERMINISTIC, "--set=rollout.max_tokens=400", "--out", folder)
    wait_for(folder / "metrics.jsonl", 1, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert untail("train", "--resume", "--out", folder).code == 0
    events = rows(folder, "events.jsonl")
    for step in (1, 2, 3):
        kinds = [event["e"] for event in events if event.get("step") == step]
        assert kinds.count("step") == kinds.count("done") == 1
        assert kinds.count("start") == kinds.count("end") == kinds.count("score") == 16
    times = [event["t"] for event in events]
    assert times[0] < 60
    assert times == sorted(times)


def test_wandb_and_trackio_must_be_installed(tmp_path):
    outcome = untail("train", *SMALL, "--set=trackers=['trackio']", "--out", tmp_path / "x")
    assert (outcome.code, "pip install trackio" in outcome.err) == (2, True)


def test_equal_rewards_make_no_update(tmp_path):
    """A reward that gives everybody the same: no update, counted, not a crash."""
    rewards = "{name = 'format', pattern = '(?s).*'}"
    outcome = untail("train", "--steps=1", *SMALL, f"--set=task.reward={rewards}", "--out", tmp_path / "x")
    assert outcome.code == 0, outcome.err
    learn = rows(tmp_path / "x")[0]["learn"]
    assert (learn["optimizer_steps"], learn["zero_variance_groups"]) == (0, 4)
