"""Length buckets: lanes by tercile, long ones first and together, failing long ones cut."""

import pytest
from tests.helpers.rollout import UNKNOWN, FakeView, make_group, make_plan, make_prompt

from untail.errors import ConfigError
from untail.rollout.live import Route

from .helpers import build, plan_for, remember


def view_with(*lengths: int | None, **fields) -> FakeView:
    view = FakeView(prompts=[make_prompt(number) for number in range(len(lengths))], **fields)
    for prompt, length in zip(view.prompts, lengths, strict=True):
        if length is not None:
            remember(view, prompt, [1.0], length)
    return view


def routes(view: FakeView, **fields) -> list[Route | None]:
    buckets = build("buckets", **fields)
    return [buckets.route(make_group(plan_for(view, p)).members[0], view) for p in view.prompts]


SHORT, MEDIUM, LONG = Route("short", 1.0), Route("medium", 0.5), Route("long", 0.25)


def test_thirds_by_hand():
    assert routes(view_with(60, 10, 40, 30, 20, 50)) == [LONG, SHORT, MEDIUM, MEDIUM, SHORT, LONG]
    assert routes(view_with(10, 20, 30, 40)) == [SHORT, MEDIUM, MEDIUM, LONG]


def test_shares_are_the_base_times_a_factor():
    shares = [route.share for route in routes(view_with(10, 20, 30, 40), base=0.4, short=3, long=0.25)]
    assert shares == pytest.approx([1.0, 0.4, 0.4, 0.1])


def test_with_nothing_to_tell_apart_there_are_no_lanes():
    assert routes(view_with(None, None, None)) == [None] * 3
    assert routes(view_with(10, 5000)) == [None] * 2
    assert routes(view_with(10, 20, 20, 20, 30)) == [None] * 5  # the middle third is one length
    # Five prompts are as long as their task's median of 20; all must not share half of the slots.
    assert routes(view_with(10, 20, 30, *[None] * 5)) == [None] * 8


def test_an_unknown_length_is_medium():
    view = view_with(10, 20, 30, 40)
    group = make_group(make_plan(make_prompt(9), predicted=UNKNOWN))
    assert build("buckets").route(group.members[0], view) == MEDIUM


def test_long_plans_have_one_priority_above_all_lengths():
    view = view_with(10, 20, 30, 5000, 6000, 8000)
    buckets = build("buckets")
    priorities = [buckets.shape(plan_for(view, p, priority=7.0), view).priority for p in view.prompts]
    assert priorities == [7.0, 7.0, 7.0, 7.0, 8193.0, 8193.0]


def test_without_thirds_nobody_is_long():
    view = view_with(10, 20, 20, 20, 30)
    assert build("buckets").shape(plan_for(view, view.prompts[4]), view).priority == 0.0


def failing(view: FakeView, prompt, groups: int, length: int) -> None:
    for _ in range(groups):
        remember(view, prompt, [0.0, 0.0], length)


def test_a_long_prompt_that_fails_three_times_gets_half_of_what_it_takes():
    view = view_with(10, 20, 30, 40, None, None)
    failing(view, view.prompts[4], 3, 6000)
    failing(view, view.prompts[5], 2, 6000)
    buckets = build("buckets")
    budgets = [buckets.shape(plan_for(view, p), view).budget for p in view.prompts]
    assert budgets == [8192, 8192, 8192, 8192, 3000, 8192]
    plan = plan_for(view, view.prompts[4])
    plan.budget = 1000
    assert buckets.shape(plan, view).budget == 1000  # never more than it had


def test_the_floor_of_a_failing_prompts_budget():
    view = view_with(10, 20, 30, 40, None, 500)
    failing(view, view.prompts[4], 3, 600)
    assert build("buckets").shape(plan_for(view, view.prompts[4]), view).budget == 512
    assert build("buckets", floor=0.01).shape(plan_for(view, view.prompts[4]), view).budget == 300


def test_a_failing_prompt_that_is_not_long_keeps_its_budget():
    view = view_with(None, 200, 300)
    failing(view, view.prompts[0], 5, 100)
    assert build("buckets").shape(plan_for(view, view.prompts[0]), view).budget == 8192


@pytest.mark.parametrize(("field", "value"), [("base", 0), ("base", 2), ("short", -1), ("floor", 0), ("medium", 1)])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.buckets\.{field}"):
        build("buckets", **{field: value})
