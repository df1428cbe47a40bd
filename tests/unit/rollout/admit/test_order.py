"""Order and dispatch: priorities by predicted length, and engines by predicted load."""

import pytest
from tests.helpers.rollout import UNKNOWN, FakeView, finish, make_group, make_plan, make_prompt, write

from untail.errors import ConfigError
from untail.rollout.live import State

from .helpers import build, plan_for, remember


def view_with(*lengths: int, **fields) -> FakeView:
    view = FakeView(prompts=[make_prompt(number) for number in range(len(lengths))], **fields)
    for prompt, length in zip(view.prompts, lengths, strict=True):
        remember(view, prompt, [1.0], length)
    return view


def priorities(view: FakeView, **fields) -> list[float]:
    order = build("order", **fields)
    return [order.shape(plan_for(view, prompt), view).priority for prompt in view.prompts]


def test_longest_first():
    assert priorities(view_with(300, 100, 200)) == [300.0, 100.0, 200.0]


def test_fifo_has_no_preference():
    assert priorities(view_with(300, 100, 200), by="fifo") == [0.0] * 3


def test_alternating_goes_up_in_odd_steps_and_down_in_even_ones():
    assert priorities(view_with(300, 100, 200, step=1), by="alternating") == [-300.0, -100.0, -200.0]
    assert priorities(view_with(300, 100, 200, step=2), by="alternating") == [300.0, 100.0, 200.0]


def test_an_unknown_length_is_a_quarter_of_the_budget():
    view = FakeView()
    plan = make_plan(predicted=UNKNOWN)
    assert build("order").shape(plan, view).priority == 2048.0
    assert build("order", unknown=0.5).shape(plan, view).priority == 4096.0


@pytest.mark.parametrize("by", ["fifo", "longest", "alternating"])
@pytest.mark.parametrize("step", [1, 2])
def test_what_keeps_failing_goes_behind_everything(by, step):
    view = view_with(1, 8192, 8192, 1, step=step)
    for failing in view.prompts[2:]:
        for _ in range(3):
            remember(view, failing, [0.0, 0.0], int(view.predictor.predict(failing).mean))
    found = priorities(view, by=by)
    assert max(found[2:]) < min(found[:2])
    assert build("order", failing_streak=4).shape(plan_for(view, view.prompts[2]), view).priority > -8193


def test_a_length_beyond_the_budget_counts_as_the_budget():
    assert priorities(view_with(500, 100, budget=200)) == [200.0, 100.0]


# ---- dispatch ---------------------------------------------------------------------------------------------------


def groups_of(view: FakeView, size: int = 4):
    view.group = size
    view.groups = [make_group(plan_for(view, p), name=f"g{n}") for n, p in enumerate(view.prompts)]
    return view.groups


def place(order, member, free, view) -> int:
    """As the controller does: where it is told, it goes."""
    member.engine = order.place(member, free, view)
    member.state = State.RUNNING
    return member.engine


def test_each_new_group_goes_where_least_is_to_be_done():
    view = view_with(1000, 700, 600, 200)
    order = build("order")
    engines = [place(order, group.members[0], [0, 1], view) for group in groups_of(view)]
    # loads: (1000, 0), (1000, 700), then 600 on the second: (1000, 1300), then (1200, 1300)
    assert engines == [0, 1, 1, 0]


def test_siblings_stay_together_until_the_gap_is_two_groups():
    view = view_with(100)
    order = build("order")
    (group,) = groups_of(view, size=12)
    group.plan.size = 2  # two groups are 400 tokens
    engines = [place(order, member, [0, 1], view) for member in group.members]
    # the first engine takes 5: then it has 500 more to go than the other, which takes its turn
    assert engines[:6] == [0, 0, 0, 0, 0, 1]


def test_without_stickiness_siblings_spread():
    view = view_with(100)
    order = build("order", sticky=0)
    (group,) = groups_of(view)
    assert [place(order, member, [0, 1], view) for member in group.members] == [0, 1, 0, 1]


def test_a_sibling_with_no_free_slot_is_not_waited_for():
    view = view_with(100, 900)
    order = build("order")
    first, other = groups_of(view)
    assert place(order, first.members[0], [2], view) == 2
    assert place(order, other.members[0], [1], view) == 1
    assert place(order, first.members[1], [0, 1], view) == 0


def test_a_finished_sibling_still_has_its_prefix_there():
    view = view_with(100, 100)
    first, _ = groups_of(view)
    first.members[0].engine = 1
    finish(first.members[0], 50)
    assert build("order").place(first.members[1], [0, 1], view) == 1


def test_loads_are_what_is_still_to_come_of_open_members():
    view = view_with(1000, 1000, 300)
    first, second, third = groups_of(view)
    first.members[0].engine, second.members[0].engine = 0, 1
    write(first.members[0], [1] * 900)  # 100 to go
    assert build("order").place(third.members[0], [0, 1], view) == 0
    write(first.members[0], [1] * 2000)  # it has outlived its estimate: 1450 to go
    assert build("order").place(third.members[0], [0, 1], view) == 1
    first.members[0].state = State.DONE
    assert build("order").place(third.members[0], [0, 1], view) == 0


def test_loads_are_looked_at_again_after_a_while_and_in_every_step():
    view = view_with(1000, 1000, 300, 300, 300)
    first, _, third, fourth, fifth = groups_of(view)
    order = build("order")
    assert place(order, first.members[0], [0, 1], view) == 0
    first.members[0].state = State.DONE
    view.now = 0.5
    assert place(order, third.members[0], [0, 1], view) == 1  # it does not know yet that the first is done
    view.now = 1.0
    assert place(order, fourth.members[0], [0, 1], view) == 0
    fourth.members[0].state = State.DONE
    third.members[0].state = State.DONE
    view.step = 2
    assert place(order, fifth.members[0], [0, 1], view) == 0
    assert order._loads == {0: 300.0, 1: 0.0}


@pytest.mark.parametrize(("field", "value"), [("by", "shortest"), ("sticky", -1), ("failing_streak", 0), ("first", 1)])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.order\.{field}"):
        build("order", **{field: value})
