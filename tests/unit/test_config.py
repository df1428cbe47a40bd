"""Recipes: layers, overrides, and sentences about what is wrong with them."""

import re

import pytest

from untail.config import EngineConfig, Recipe, dump_toml, layer, load_recipe, override, parse, read_toml, recipe_names
from untail.errors import ConfigError


def test_quickstart_is_the_ground_of_every_recipe():
    assert "grpo" in recipe_names()
    quickstart, grpo = load_recipe(None, {}, []), load_recipe("grpo", {}, [])
    assert quickstart.task == grpo.task == {"name": "arithmetic", "split": "train"}
    assert grpo.reproduces != quickstart.reproduces


def test_a_dumped_recipe_reads_back_as_itself(tmp_path):
    recipe = load_recipe("grpo", {}, ["learn.lr=1e-4", "engine.context=256"])
    path = tmp_path / "recipe.toml"
    path.write_text(dump_toml(recipe))
    assert parse(Recipe, read_toml(path), "") == recipe


def test_a_file_is_a_layer(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("steps = 7\n[learn]\nlr = 1e-5\n")
    recipe = load_recipe(str(path), {"model": "smollm2"}, ["seed=3"])
    assert (recipe.steps, recipe.learn.lr, recipe.model, recipe.seed) == (7, 1e-5, "smollm2", 3)


def test_another_task_replaces_the_whole_table_and_its_validation():
    recipe = load_recipe(None, {"task": {"name": "file", "path": "x.jsonl"}}, [])
    assert recipe.task == {"name": "file", "path": "x.jsonl"}
    assert recipe.validation.task is None
    same = load_recipe(None, {"task": {"name": "arithmetic", "size": 5}}, [])
    assert same.task == {"name": "arithmetic", "split": "train", "size": 5}
    assert same.validation.task is not None


def test_layers_do_not_touch_what_they_are_made_from():
    below = {"a": {"b": 1}}
    assert layer(below, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert below == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("plain text", "plain text"),
        ('"7"', "7"),
        ('""', ""),
        ("", None),
    ],
)
def test_values_are_toml_where_they_can_be(text, value):
    assert override({}, [f"a.b={text}"]) == {"a": {"b": value}}


SENTENCES = {
    "learn.lrr=1": "unknown key 'learn.lrr'; did you mean 'lr'?",
    "lern.lr=1": "unknown key 'lern'; did you mean 'learn'?",
    "learn.lr=-1": "learn.lr = -1 is not valid: Input should be greater than 0",
    "learn.lr=nan": "learn.lr = nan is not valid",
    "engine.device=tpu": "engine.device = 'tpu' is not valid: Input should be 'auto', 'cpu' or 'cuda'",
    "steps=0": "steps = 0 is not valid",
    "steps": "--set 'steps' is not of the form section.key=value",
    ".a=1": "--set '.a=1' is not of the form section.key=value",
    "mechanisms.loop=3": "mechanisms.loop = 3 is neither a table nor false; set one of its fields",
    "mechanisms.loop=true": "take it with its defaults with --set mechanisms.loop={}, or leave it out",
    "mechanisms=3": "mechanisms = 3 is not valid: Input should be a valid dictionary",
    "validation.temperature=-1": "validation.temperature = -1 is not valid: Input should be 0 or Input should be",
    "learn.betas=[0.9, 2]": "learn.betas.1 = 2 is not valid",
    "steps.x=1": "--set 'steps.x=1': steps is a value, not a section",
}


@pytest.mark.parametrize("assignment", SENTENCES)
def test_what_is_wrong_is_one_sentence(assignment):
    with pytest.raises(ConfigError, match=re.escape(SENTENCES[assignment])):
        load_recipe(None, {}, [assignment])


def test_unknown_recipe_and_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match=re.escape("unknown recipe 'grpoo'; did you mean 'grpo'?")):
        load_recipe("grpoo", {}, [])
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*missing\.toml: No such file"):
        load_recipe(str(tmp_path / "missing.toml"), {}, [])
    (tmp_path / "binary.toml").write_bytes(b"\xf5\x00\xff")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_recipe(str(tmp_path / "binary.toml"), {}, [])
    (tmp_path / "broken.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_recipe(str(tmp_path / "broken.toml"), {}, [])


def test_a_config_does_not_change():
    with pytest.raises(Exception, match="frozen"):
        EngineConfig().max_seqs = 3


@pytest.mark.parametrize(("recipe", "field"), [("g2tp", "prune"), ("dynaseg", "bridge"), ("ppo", "critic")])
def test_false_leaves_a_part_of_the_learner_out(recipe, field):
    assert getattr(load_recipe(recipe, {}, []).learn, field) is not None
    assert getattr(load_recipe(recipe, {}, [f"learn.{field}=false"]).learn, field) is None


def test_a_field_of_a_plug_in_that_stands_there_by_its_name():
    recipe = load_recipe("untail", {}, ["draft.choose.trial=3"])
    assert recipe.draft.choose == {"name": "bandit", "trial": 3}


def test_every_table_that_may_be_a_name_is_known_as_one():
    from untail.config import NAMED_TABLES, DraftConfig, LearnConfig, NamedTable

    fields = {**DraftConfig.__annotations__, **LearnConfig.__annotations__}
    assert {name for name, kind in fields.items() if kind in (NamedTable, NamedTable | None)} == NAMED_TABLES
