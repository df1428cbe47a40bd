"""`untail plan` as a user runs it."""

import pytest

from tests.e2e.conftest import SMALL, untail
from tests.unit.flow.test_profile import profile, write_run
from untail.config import dump_toml, load_recipe

FIELDS = {"mode", "placement", "granularity", "predicted_step_s", "search_ms", "alternatives"}


def test_a_plan_says_where_and_why(tmp_path):
    path = tmp_path / "profile.json"
    profile().save(path)
    outcome = untail("plan", "grpo", "--devices=8", f"--profile={path}", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert found.keys() >= FIELDS
    assert found["mode"] in ("collocated", "disaggregated", "hybrid")
    assert {"rollout", "update"} <= found["placement"].keys()
    assert all(other["why"] for other in found["alternatives"])
    assert "rejected" in outcome.err


def test_times_may_come_from_a_run_and_be_kept(tmp_path):
    write_run(tmp_path)
    kept = tmp_path / "kept.json"
    once = untail("plan", "--devices=4", f"--run={tmp_path}", f"--save={kept}", "--json")
    again = untail("plan", "--devices=4", f"--profile={kept}", "--json")
    assert (once.code, again.code) == (0, 0), once.err + again.err
    assert once.json["predicted_step_s"] == again.json["predicted_step_s"]


def test_a_run_is_planned_by_its_own_recipe_and_its_times_are_of_its_model(tmp_path):
    write_run(tmp_path)
    (tmp_path / "recipe.toml").write_text(dump_toml(load_recipe(None, {}, ["rollout.prompts=6", "rollout.group=4"])))
    outcome = untail("plan", "--devices=4", f"--run={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert "a step of 6 x 4 responses" in outcome.err
    other = untail("plan", "--devices=4", f"--run={tmp_path}", "--set", "model=smollm2")
    assert other.code == 2
    assert "is of model = 'tiny', and this is model = 'smollm2'" in other.lines_of_error[-1]


def test_without_either_this_machine_is_measured():
    outcome = untail("plan", *SMALL, "--devices=2", "--overlap", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["predicted_step_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile=a.json", "--run=b"], "--profile and --run both say what the roles take"),
        (["--profile=nowhere.json"], "cannot read the profile nowhere.json"),
        (["--run=nowhere"], "nowhere is no run"),
        (["--devices=0"], "greater than or equal to 1"),
        (["grpoo"], "unknown recipe 'grpoo'"),
        (["--profile=a.json", "--save=b.json"], "is kept already"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_2(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    outcome = untail("plan", *arguments)
    assert outcome.code == 2, outcome.err
    (line,) = outcome.lines_of_error
    assert said in line
