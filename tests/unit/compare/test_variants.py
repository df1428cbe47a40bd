"""What is compared, and what is refused."""

import pytest

from untail.compare.variants import ablated, loader, named, varied
from untail.errors import ConfigError, UserError

RECIPE = """
steps = 50
[mechanisms.first]
[mechanisms.second]
share = 0.5
[mechanisms.third]
"""


@pytest.fixture
def recipe(tmp_path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return str(path)


def mechanisms(variants) -> dict[str, set[str]]:
    """Those that are left in each row."""
    left = lambda v: {name for name, table in v.recipe.mechanisms.items() if table is not False}
    return {variant.name: left(variant) for variant in variants}


def test_recipes_by_name(recipe):
    variants = named(["grpo", recipe], loader({"steps": 7}, ["seed=3"]))
    assert [(v.name, v.recipe.steps, v.recipe.seed) for v in variants] == [("grpo", 7, 3), ("mine", 7, 3)]
    assert not any(variant.may_fail for variant in variants)


def test_a_recipe_named_again_gets_a_number(recipe):
    assert [variant.name for variant in named(["grpo", recipe, "grpo"], loader({}, ["steps=7"]))] == [
        *("grpo", "mine", "grpo (2)")
    ]


def test_an_unknown_recipe():
    with pytest.raises(ConfigError, match="unknown recipe 'grpoo'; did you mean 'grpo'"):
        named(["grpo", "grpoo"], loader({}, []))


def test_validated_on_the_way_unless_somebody_says_how_often(recipe, tmp_path):
    (tmp_path / "often.toml").write_text("[validation]\nevery = 3\n")
    every = lambda source, assignments: loader({}, assignments)(source, []).validation.every
    assert every(recipe, []) == 10
    assert every(recipe, ["steps=2"]) == 1
    assert every(recipe, ["validation.every=0"]) == 0
    assert every(str(tmp_path / "often.toml"), []) == 3


def test_recipes_that_do_not_start_alike_are_refused(recipe):
    with pytest.raises(UserError, match=r"must have the same steps, but grpo has 40 and mine has 50; .* --set steps="):
        named(["grpo", recipe], loader({}, ["validation.every=0"]))


def test_each_mechanism_left_out(recipe):
    variants = ablated(recipe, "out", loader({}, []))
    assert mechanisms(variants) == {
        "mine": {"first", "second", "third"},
        "mine - first": {"second", "third"},
        "mine - second": {"first", "third"},
        "mine - third": {"first", "second"},
    }
    assert [variant.may_fail for variant in variants] == [False, True, True, True]


def test_each_mechanism_alone(recipe):
    variants = ablated(recipe, "only", loader({}, ["mechanisms.third=false"]))
    assert mechanisms(variants) == {"plain": set(), "+ first": {"first"}, "+ second": {"second"}}
    assert variants[2].recipe.mechanisms["second"] == {"share": 0.5}


def test_nothing_to_ablate():
    with pytest.raises(UserError, match="--ablate: the recipe 'grpo' has no mechanisms"):
        ablated("grpo", "out", loader({}, []))


def test_a_field_swept():
    variants = varied("grpo", "learn.lr=1e-3,1e-4", loader({}, []))
    assert [(v.name, v.recipe.learn.lr) for v in variants] == [("learn.lr=1e-3", 1e-3), ("learn.lr=1e-4", 1e-4)]


@pytest.mark.parametrize("key", ["engine.max_seqs", "validation.prompts"])
def test_what_is_swept_may_differ(key):
    assert len(varied("grpo", f"{key}=4,8", loader({}, []))) == 2


@pytest.mark.parametrize("sweep", ["learn.lr", "learn.lr=", "=1,2", "learn.lr=1,,2"])
def test_a_sweep_that_is_none(sweep):
    with pytest.raises(UserError, match="is not of the form KEY=A,B"):
        varied("grpo", sweep, loader({}, []))


def test_a_value_that_is_not_valid():
    with pytest.raises(ConfigError, match=r"learn\.lr = -1 is not valid"):
        varied("grpo", "learn.lr=1,-1", loader({}, []))
