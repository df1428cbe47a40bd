"""No token is trained that is staler than the bound, whatever the lengths, the recipe and the bound are."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.steps import Tail, simulate_steps, small_recipe, unless_no_group_teaches
from untail.config import Recipe
from untail.types import Group

RECIPES = ("april", "es-grpo", "ulorl", "untail", "forks")
FORKS = [f"mechanisms.{name}={{}}" for name in ("fixed", "tournament", "fork", "defer")]


def recipe_of(name: str, **rollout) -> Recipe:
    return small_recipe(None, *FORKS, **rollout) if name == "forks" else small_recipe(name, **rollout)


def check_bound(batches: list[list[Group]], bound: int) -> int:
    """The weights that a step trains have version step - 1. The staleness of the stalest token comes back."""
    stalest = 0
    for step, batch in enumerate(batches, 1):
        for group in batch:
            for trajectory in group.trajectories:
                for version in trajectory.version:
                    assert 0 <= step - 1 - version <= bound, f"step {step}: {trajectory.id} has version {version}"
                    stalest = max(stalest, step - 1 - version)
    return stalest


laws = st.builds(
    Tail,
    seed=st.integers(0, 1000),
    median=st.sampled_from([4.0, 20.0, 60.0]),
    p99=st.sampled_from([70.0, 400.0, 5000.0]),
    prompt_share=st.sampled_from([0.0, 0.7, 1.0]),
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(RECIPES),
    law=laws,
    bound=st.integers(0, 4),
    prompts=st.integers(1, 5),
    group=st.integers(3, 5),  # with two there is nothing to prune
    slots=st.integers(1, 9),
    engines=st.integers(1, 2),
)
def test_the_bound_holds_token_by_token(name, law, bound, prompts, group, slots, engines):
    recipe = recipe_of(name, prompts=prompts, group=group, max_tokens=96, max_staleness=bound)
    with unless_no_group_teaches():
        taken = simulate_steps(recipe, law, steps=7, slots=slots, engines=engines, pool=12)
    check_bound(taken.batches, bound)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(RECIPES), law=laws)
def test_with_a_bound_of_0_every_step_trains_tokens_of_its_own_alone(name, law):
    recipe = recipe_of(name, max_staleness=0, audit=0.0)  # what runs for the audit alone may outlive the step
    taken = simulate_steps(recipe, law, steps=5)
    for step, batch in enumerate(taken.batches, 1):
        versions = {version for group in batch for t in group.trajectories for version in t.version}
        assert versions == {step - 1}
    assert {books["carried_out"] for books in taken.accounts} == {0}


def test_the_bound_is_reached():
    """Otherwise the tests above would say nothing."""
    for bound in (1, 2):
        recipe = small_recipe("untail", max_staleness=bound)
        assert check_bound(simulate_steps(recipe, Tail(0), 12).batches, bound) == bound
