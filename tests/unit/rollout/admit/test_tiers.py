"""Tiered budgets: who gets the full budget, a quarter, or no turn."""

import pytest
from tests.helpers.rollout import FakeView, make_prompt

from untail.errors import ConfigError

from .helpers import build, plan_for, remember


def view_with(*rates: tuple[int, int]) -> FakeView:
    """A prompt each, with so many successes of so many."""
    view = FakeView(prompts=[make_prompt(number) for number in range(len(rates))])
    for prompt, (successes, n) in zip(view.prompts, rates, strict=True):
        if n:
            remember(view, prompt, [1.0] * successes + [0.0] * (n - successes))
    return view


def budgets(view: FakeView, **fields) -> list[int | None]:
    tiers = build("tiers", retest=0, **fields)
    plans = [tiers.shape(plan_for(view, prompt), view) for prompt in view.prompts]
    return [None if plan is None else plan.budget for plan in plans]


def test_tiers_by_hand():
    # p = 0.98, 0.02, 1/3 (the highest gain), 0.5, 0.6, 0.9; two of six are the top third.
    view = view_with((48, 48), (0, 48), (9, 28), (9, 18), (5, 8), (8, 8))
    assert budgets(view) == [None, 2048, 8192, 8192, 2048, 2048]


def test_few_rewards_mean_the_full_budget():
    assert budgets(view_with((7, 7), (0, 7), (0, 0))) == [8192] * 3
    assert budgets(view_with((7, 7), (0, 7), (0, 0)), least=7) == [2048, 8192, 8192]


def test_unknown_prompts_are_no_part_of_the_third():
    assert budgets(view_with((9, 28), (0, 0), (9, 18), (0, 0), (5, 8))) == [8192, 8192, 2048, 8192, 2048]


def test_equals_are_treated_alike():
    assert budgets(view_with((9, 28), (9, 28), (9, 28))) == [8192] * 3


def test_a_budget_that_is_lower_already_stays():
    view = view_with((9, 28), (0, 48), (5, 8))
    plan = plan_for(view, view.prompts[1])
    plan.budget = 100
    assert build("tiers", retest=0).shape(plan, view).budget == 100


def test_some_of_the_skipped_and_cut_are_tested_again_at_the_full_budget():
    view = view_with(*[(48, 48)] * 500, *[(0, 48)] * 500)
    tiers = build("tiers")
    plans = [tiers.shape(plan_for(view, prompt), view) for prompt in view.prompts]
    asked = [plan for plan in plans[:500] if plan is not None]
    assert {plan.budget for plan in asked} == {8192}
    assert 10 <= len(asked) <= 45
    assert 10 <= sum(plan.budget == 8192 for plan in plans[500:]) <= 45
    assert {plan.budget for plan in plans[500:]} == {8192, 2048}
    again = [build("tiers").shape(plan_for(view, prompt), view) for prompt in view.prompts]
    assert again == plans  # the same whenever it is asked in this step
    view.step = 2
    assert [tiers.shape(plan_for(view, prompt), view) for prompt in view.prompts] != plans


def test_the_third_is_looked_up_once_in_a_step():
    view = view_with((9, 28), (9, 18), (5, 8))
    tiers = build("tiers", retest=0)
    assert tiers.shape(plan_for(view, view.prompts[1]), view).budget == 2048
    remember(view, view.prompts[0], [1.0] * 100)  # its gain is lower now, but that counts from the next step on
    assert tiers.shape(plan_for(view, view.prompts[1]), view).budget == 2048
    view.step = 2
    assert tiers.shape(plan_for(view, view.prompts[1]), view).budget == 8192


@pytest.mark.parametrize(("field", "value"), [("least", 0), ("cut", 0.0), ("full", 1.5), ("retest", -1), ("tier", 1)])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.tiers\.{field}"):
        build("tiers", **{field: value})


def test_contradiction():
    with pytest.raises(ConfigError, match=r"mechanisms\.tiers\.hopeless = 0.99 exceeds mechanisms\.tiers\.mastered"):
        build("tiers", hopeless=0.99)
