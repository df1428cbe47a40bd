"""`untail compare` and `untail recipes`, as a user types them."""

import shutil
import tomllib

import pytest

from tests.e2e.conftest import SMALL, rows, untail
from untail.config import Recipe, parse
from untail.observe.figures import read_run

FIELDS = {
    *("recipe", "wall_s", "rollout_s", "tokens", "ett", "etr", "slot_bubble", "tail_share", "makespan_p50"),
    *("makespan_p95", "bad_generation", "mean_len", "entropy", "pass1", "score_after", "time_to_score_s"),
    *("tokens_to_score", "peak_mem", "phases", "speedup"),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two recipes of two small steps with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "compared"
    outcome = untail("compare", "grpo", "oversample", "--steps=2", "--seeds=2", *SMALL, "--out", folder, "--json")
    assert outcome.code == 0, outcome.err
    return folder, outcome


def test_a_row_for_each_recipe(compared):
    folder, outcome = compared
    result = outcome.json
    assert [row["recipe"] for row in result["rows"]] == ["grpo", "oversample"]
    for row in result["rows"]:
        assert set(row) >= FIELDS
        assert [seed["seed"] for seed in row["seeds"]] == [0, 1]
        for seed in row["seeds"]:
            assert seed["accounts"]["unaccounted"] == 0
            assert len(seed["validations"]) == 3  # before, on the way, after
    grpo, oversample = result["rows"]
    assert grpo["speedup"] == 1.0
    assert grpo["bad_generation"] == 0.0
    assert oversample["bad_generation"] > 0.0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{name}-seed{seed}" for name in ("1-grpo", "2-oversample") for seed in (0, 1)
    ]
    assert "speedup" in outcome.err


def test_all_start_from_the_same_weights_and_prompts(compared):
    """The same seed: the same score before, whatever the recipe."""
    grpo, oversample = compared[1].json["rows"]
    for one, other in zip(grpo["seeds"], oversample["seeds"], strict=True):
        assert one["score_before"] == other["score_before"]


def test_every_figure_can_be_computed_again_from_the_events(compared):
    for folder in compared[0].iterdir():
        assert read_run(folder / "events.jsonl").rows == rows(folder)


def test_a_run_of_a_comparison_can_be_continued(compared, tmp_path):
    shutil.copytree(compared[0] / "2-oversample-seed0", tmp_path / "run")
    outcome = untail("train", "--resume", "--steps=3", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3]


def test_a_mechanism_left_out(tmp_path):
    small = [*SMALL, "--steps=1", "--out", tmp_path / "x", "--json"]
    outcome = untail("compare", "oversample", "--ablate=out", *small)
    assert outcome.code == 0, outcome.err
    assert [row["recipe"] for row in outcome.json["rows"]] == ["oversample", "oversample - oversample"]


def test_a_field_swept(tmp_path):
    small = [*SMALL, "--steps=1", "--out", tmp_path / "x", "--json"]
    outcome = untail("compare", "grpo", "--vary=rollout.max_tokens=8,48", *small)
    assert outcome.code == 0, outcome.err
    short, long = outcome.json["rows"]
    assert (short["recipe"], long["recipe"]) == ("rollout.max_tokens=8", "rollout.max_tokens=48")
    assert short["mean_len"] <= 8 < long["mean_len"]


def test_a_row_that_makes_no_sense_is_out_and_the_others_go_on(tmp_path):
    """Nobody knows the one, and the other is fine."""
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[mechanisms.oversample]\nrate = 0.5\n[mechanisms.nonsense]\n")
    small = [*SMALL, "--steps=1", "--out", tmp_path / "x", "--json"]
    outcome = untail("compare", recipe, "--ablate=only", *small)
    assert outcome.code == 0, outcome.err
    plain, oversample, nonsense = outcome.json["rows"]
    assert (plain["recipe"], oversample["recipe"], nonsense["recipe"]) == ("plain", "+ oversample", "+ nonsense")
    assert "unknown mechanism 'nonsense'" in nonsense["error"]
    assert "error" not in plain
    assert oversample["bad_generation"] > 0


WRONG = {
    "unknown recipe": (["grpo", "grpoo"], "unknown recipe 'grpoo'; did you mean 'grpo'?"),
    "two recipes to ablate": (["grpo", "oversample", "--ablate=out"], "--ablate takes one recipe, but 2 are named"),
    "two recipes to vary": (["grpo", "oversample", "--vary=learn.lr=1,2"], "--vary takes one recipe, but 2 are named"),
    "both": (["oversample", "--ablate=out", "--vary=learn.lr=1,2"], "--ablate and --vary ask for different rows"),
    "nothing to ablate": (["grpo", "--ablate=out"], "the recipe 'grpo' has no mechanisms"),
    "no such ablation": (["oversample", "--ablate=some"], "'some' is not one of"),
    "no values": (["grpo", "--vary=learn.lr"], "--vary 'learn.lr' is not of the form KEY=A,B"),
    "unknown field": (["grpo", "--vary=learn.lrr=1,2"], "unknown key 'learn.lrr'; did you mean 'lr'?"),
    "bad value": (["grpo", "--set=learn.lr=-1"], "learn.lr = -1 is not valid"),
    "no seeds": (["grpo", "--seeds=0"], "greater than or equal to 1"),
    "nothing named": ([], "Missing argument"),
    "unknown model": (["grpo", "--model=nowhere"], "there is no model folder 'nowhere'"),
    "a tracker of one run": (["grpo", "--set=trackers=['wandb']"], "follows one run at a time"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_sentence_and_exit_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, sentence = WRONG[case]
    outcome = untail("compare", *arguments)
    assert outcome.code == 2, outcome.err
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err
    assert not any(tmp_path.iterdir())  # nothing is left behind


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = untail("compare", "grpo", "--out", tmp_path)
    assert (outcome.code, "is not an empty folder; choose another" in outcome.err) == (2, True)


def test_recipes_are_listed():
    outcome = untail("recipes", "--json")
    assert outcome.code == 0, outcome.err
    listed = {entry["name"]: entry for entry in outcome.json["recipes"]}
    assert listed["grpo"]["sections"] == ["6.1", "8.1 GRPO"]
    assert listed["oversample"]["sections"] == ["6.2", "8.1 GRPO"]
    assert listed["dapo"]["sections"] == ["2.3", "8.1 DAPO"]
    assert listed["ulorl"]["sections"] == ["3.2", "3.6", "8.1 GRPO", "8.2 pois", "8.3"]
    assert listed["april"]["sections"] == ["6.2", "8.1 GRPO", "8.2 tis"]
    assert all(entry["reproduces"] and entry["sections"] for entry in listed.values())
    assert "oversample" in untail("recipes").out


def test_a_recipe_is_shown_as_it_is_resolved():
    outcome = untail("recipes", "show", "oversample")
    assert outcome.code == 0, outcome.err
    recipe = parse(Recipe, tomllib.loads(outcome.out), "")
    assert recipe.model == "tiny"
    assert "oversample" in recipe.mechanisms
    described = untail("recipes", "show", "oversample", "--json").json
    assert described["recipes"][0]["name"] == "oversample"
    assert described["resolved"]["model"] == "tiny"


def test_an_unknown_recipe_is_not_shown():
    outcome = untail("recipes", "show", "grpoo")
    assert (outcome.code, "did you mean 'grpo'?" in outcome.err) == (2, True)
