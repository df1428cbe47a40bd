"""Group size from history, with the step's total held."""

import random
from statistics import fmean

import pytest
from tests.helpers.rollout import FakeView, make_prompt

from untail.errors import ConfigError

from .helpers import build, plan_for, remember


def view_with(*successes: int | None, **fields) -> FakeView:
    """A prompt each, with so many successes of 998: so p = 0.001, 0.5 and 0.999 for 0, 499 and 998."""
    view = FakeView(prompts=[make_prompt(number) for number in range(len(successes))], **fields)
    for prompt, count in zip(view.prompts, successes, strict=True):
        if count is not None:
            remember(view, prompt, [1.0] * count + [0.0] * (998 - count))
    return view


def first_size(view: FakeView, number: int, **fields) -> int:
    """Of this prompt, if it were the first group of the step: nothing is owed."""
    return build("group_size", **fields).shape(plan_for(view, view.prompts[number]), view).size


def test_the_map_by_hand():
    mechanism = build("group_size")
    assert [mechanism._want(rate, 8) for rate in (0.0, 0.25, 0.5, 0.75, 1.0)] == [32, 20, 8, 6, 4]


def test_a_prompt_counts_next_to_the_others():
    # wants 32, 8, 4, 4 (nearly), 12 on average: two thirds of that are to be had, but never less than 4
    view = view_with(0, 499, 998, 998, None)
    assert [first_size(view, number) for number in range(5)] == [21, 5, 4, 4, 8]
    # a hard prompt among hard ones is nothing special
    assert first_size(view_with(0, 0, 0), 0) == 8
    assert first_size(view_with(998, 998), 0) == 8
    assert first_size(view_with(0, *[998] * 30), 0) == 32


def test_the_harder_the_larger():
    view = view_with(*range(0, 999, 33))
    sizes = [first_size(view, number) for number in range(len(view.prompts))]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 6


def test_later_plans_pay_for_earlier_ones():
    view, mechanism = view_with(0, 998), build("group_size", payback=0.5, min=1)
    hard, easy = view.prompts  # they want 31.95 and 1.01, and ask for 15.51 and 0.49
    order = (hard, easy, hard, hard, easy, easy, easy, easy)
    sizes = [mechanism.shape(plan_for(view, prompt), view).size for prompt in order]
    # the balance after each: -8, -1, -8, -12, -5, 2, 9, 12
    assert sizes == [16, 1, 15, 12, 1, 1, 1, 5]


def test_a_step_begins_with_nothing_owed():
    view, mechanism = view_with(0, 998), build("group_size")
    hard = view.prompts[0]
    sizes = []
    for step in (1, 1, 2):
        view.step = step
        sizes.append(mechanism.shape(plan_for(view, hard), view).size)
    assert sizes == [14, 13, 14]


def test_the_total_of_a_step_stays():
    rng = random.Random(3)
    view, mechanism = view_with(*[rng.randint(0, 998) for _ in range(60)], wanted=32), build("group_size")
    totals, sizes = [], []
    for view.step in range(1, 41):
        plans = [mechanism.shape(plan_for(view, prompt), view) for prompt in rng.sample(view.prompts, 32)]
        assert all(4 <= plan.keep == plan.size <= 32 for plan in plans)
        totals.append(sum(plan.size for plan in plans))
        sizes += [plan.size for plan in plans]
    assert 0.96 * 256 < fmean(totals) < 1.04 * 256
    assert all(0.85 * 256 < total < 1.15 * 256 for total in totals)
    assert max(sizes) > 12  # and the sizes do differ
    assert min(sizes) < 6


def test_the_total_stays_even_if_only_hard_prompts_are_chosen():
    view, mechanism = view_with(*[0] * 8, *[998] * 24), build("group_size")
    plans = [mechanism.shape(plan_for(view, prompt), view) for prompt in view.prompts[:8] * 4]
    assert sum(plan.size for plan in plans) < 1.3 * 256  # and not 23 / 8 times


def test_oversampling_within_the_group_keeps_its_ratio():
    view = view_with(0, 998)
    plan = plan_for(view, view.prompts[1])
    plan.size = 10  # of which 8 are kept
    plan = build("group_size").shape(plan, view)
    assert (plan.size, plan.keep) == (5, 4)


@pytest.mark.parametrize("fields", [{"min": 9}, {"max": 7}])
def test_the_recipes_group_must_lie_between(fields):
    build("group_size").check(group=8, budget=512)
    with pytest.raises(ConfigError, match=r"rollout\.group = 8 is not between mechanisms\.group_size\.min"):
        build("group_size", **fields).check(group=8, budget=512)


@pytest.mark.parametrize(("field", "value"), [("min", 0), ("max", -1), ("payback", 0), ("least", 4)])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.group_size\.{field}"):
        build("group_size", **{field: value})
