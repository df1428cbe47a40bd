"""Group size from history, with the step's total held."""

import random

import pytest
from tests.helpers.rollout import FakeView, make_prompt

from untail.errors import ConfigError

from .helpers import build, plan_for, remember


def first_size(successes: int, n: int, **fields) -> int:
    """Of the first group of a step, when the balance is 0."""
    view = FakeView()
    if n:
        remember(view, view.prompts[0], [1.0] * successes + [0.0] * (n - successes))
    return build("group_size", **fields).shape(plan_for(view, view.prompts[0]), view).size


def test_the_map_by_hand():
    assert first_size(0, 0) == 8
    assert first_size(5, 10) == 8
    assert first_size(0, 998) == 32
    assert first_size(998, 998) == 4
    assert first_size(0, 2) == 8 + 24 // 2  # p = 1/4
    assert first_size(2, 2) == 8 - 4 // 2  # p = 3/4


def test_the_harder_the_larger():
    sizes = [first_size(successes, 30) for successes in range(31)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 10


def hard_and_easy() -> FakeView:
    view = FakeView(prompts=[make_prompt(0), make_prompt(1)])
    remember(view, view.prompts[0], [0.0] * 998)
    remember(view, view.prompts[1], [1.0] * 998)
    return view


def test_later_plans_pay_for_earlier_ones():
    view, mechanism = hard_and_easy(), build("group_size")
    hard, easy = view.prompts
    sizes = [mechanism.shape(plan_for(view, p), view).size for p in (hard, easy, hard, easy, hard, easy)]
    # balance: -24, -20, -24, -20, ...
    assert sizes == [32, 4, 12, 4, 12, 4]


def test_where_all_are_alike_nobody_gets_more():
    view, mechanism = hard_and_easy(), build("group_size")
    easy = view.prompts[1]
    assert [mechanism.shape(plan_for(view, easy), view).size for _ in range(4)] == [4, 8, 8, 8]


def test_the_total_stays_within_one_group():
    view, mechanism, rng = FakeView(prompts=[make_prompt(n) for n in range(40)]), build("group_size"), random.Random(3)
    for prompt in view.prompts:
        right = rng.randint(0, 50)
        remember(view, prompt, [1.0] * right + [0.0] * (50 - right))
    for step in range(1, 30):
        view.step, total = step, 0
        for count in range(1, 40):
            plan = mechanism.shape(plan_for(view, rng.choice(view.prompts)), view)
            assert 4 <= plan.keep == plan.size <= 32
            total += plan.size
            assert 4 - 8 <= total - 8 * count <= 32 - 8


def test_a_step_begins_with_nothing_owed():
    view, mechanism = hard_and_easy(), build("group_size")
    hard = view.prompts[0]
    assert mechanism.shape(plan_for(view, hard), view).size == 32
    assert mechanism.shape(plan_for(view, hard), view).size == 8
    view.step = 2
    assert mechanism.shape(plan_for(view, hard), view).size == 32


def test_oversampling_within_the_group_keeps_its_ratio():
    view = hard_and_easy()
    plan = plan_for(view, view.prompts[1])
    plan.size = 10  # of which 8 are kept
    plan = build("group_size").shape(plan, view)
    assert (plan.size, plan.keep) == (5, 4)


@pytest.mark.parametrize("fields", [{"min": 9}, {"max": 7}])
def test_the_recipes_group_must_lie_between(fields):
    build("group_size").check(group=8, budget=512)
    with pytest.raises(ConfigError, match=r"rollout\.group = 8 is not between mechanisms\.group_size\.min"):
        build("group_size", **fields).check(group=8, budget=512)


@pytest.mark.parametrize(("field", "value"), [("min", 0), ("max", -1), ("least", 4)])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.group_size\.{field}"):
        build("group_size", **{field: value})
