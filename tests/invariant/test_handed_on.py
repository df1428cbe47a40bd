"""Groups that are handed on before their step closes: in every recipe, those and no others are trained, and most
recipes hand on something early."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.steps import Steps, Tail, simulate_steps, small_recipe, unless_no_group_teaches
from tests.invariant.test_staleness import laws
from untail.config import recipe_names

RECIPES = sorted(set(recipe_names()) - {"quickstart"})


def early(taken: Steps) -> int:
    """Groups that were handed on before their step was over."""
    over = [event["t"] for event in taken.all("rolled_out")]
    return sum(time < end for end, given in zip(over, taken.given, strict=True) for time, _ in given)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(RECIPES),
    law=laws,
    bound=st.integers(0, 4),
    prompts=st.integers(1, 6),
    group=st.integers(3, 5),
    slots=st.integers(1, 9),
    engines=st.integers(1, 3),
    score_s=st.sampled_from([0.0, 2.0]),
)
def test_what_is_handed_on_is_trained(name, law, bound, prompts, group, slots, engines, score_s):
    recipe = small_recipe(name, prompts=prompts, group=group, max_tokens=96, max_staleness=bound)
    with unless_no_group_teaches():
        taken = simulate_steps(recipe, law, steps=5, slots=slots, engines=engines, pool=14, score_s=score_s)
    for handed_on, batch in zip(taken.given, taken.batches, strict=True):
        assert sorted(name for _, name in handed_on) == sorted(group.id for group in batch)


@pytest.mark.parametrize("name", ["grpo", "dapo", "oversample", "deadline", "rollpacker", "april", "es-grpo", "untail"])
def test_groups_are_handed_on_early(name):
    taken = simulate_steps(small_recipe(name, prompts=6), Tail(0), steps=6)
    assert early(taken) > 0
