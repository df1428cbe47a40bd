"""3.3b by hand: clamp(1.2 (L_pred - len), 64, cap), and boundaries close to the end."""

import pytest
from tests.helpers.rollout import FakeView, finish, make_group, make_plan, make_prompt, write
from tests.unit.history.helpers import record

from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, Stride
from untail.rollout.stride import remainder  # noqa: F401  (registers)

PROMPT = make_prompt(0)


def build(**fields):
    return MECHANISMS.build({"name": "remainder", **fields}, "mechanisms.remainder")


def view_of(length: int | None = None, **fields) -> FakeView:
    view = FakeView(**fields)
    if length is not None:
        view.history.add([record(length, PROMPT.id)])
    return view


def member(length: int = 0, stride: int = 0) -> Member:
    """It has so many tokens, and came to the end of a stride."""
    one = make_group(make_plan(PROMPT)).members[0]
    one.stride = stride
    return write(one, [1] * length)


@pytest.mark.parametrize(
    ("predicted", "tokens"), [(1000, 1200), (1001, 1202), (53, 64), (54, 65), (3413, 4096), (3414, 4096), (8000, 4096)]
)
def test_the_first_stride(predicted, tokens):
    """1.2 x 1001 = 1201.2, rounded up; 1.2 x 53 = 63.6 is below the floor; 1.2 x 3414 = 4096.8 is over the cap."""
    assert build().stride(member(), view_of(predicted)) == Stride(tokens)


def test_the_first_stride_without_a_prediction_is_a_quarter_of_the_cap():
    assert build().stride(member(), view_of()) == Stride(1024)
    assert build().stride(member(), view_of(budget=1024)) == Stride(128)
    assert build().stride(member(), view_of(budget=1)) == Stride(1)


def test_what_is_left_of_the_prediction():
    assert build().stride(member(4000, stride=4000), view_of(6000)) == Stride(2400)


def test_one_that_outlived_its_prediction_gets_half_of_what_it_has():
    assert build().stride(member(1200, stride=1200), view_of(1000)) == Stride(720)  # 1.2 x 600
    assert build().stride(member(1024, stride=1024), view_of()) == Stride(615)  # 1.2 x 512 = 614.4


def test_finished_siblings_are_asked():
    one = member(100, stride=100)
    finish(one.group.members[1], 1100)
    assert build().stride(one, view_of()) == Stride(1200)


def test_a_boundary_close_to_the_end_is_passed_in_place():
    """A quarter of 4096 is 1024."""
    assert build().stride(member(4096, stride=4096), view_of(4096 + 1024)) == Stride(1229, in_place=True)
    assert build().stride(member(4096, stride=4096), view_of(4096 + 1025)) == Stride(1230)


def test_a_short_prediction_does_not_make_the_first_stride_pass_in_place():
    assert build().stride(member(), view_of(1)) == Stride(64)


def test_lengths_scale_with_the_budget():
    """An eighth: the floor is 8, the cap 512."""
    assert build().stride(member(), view_of(5, budget=1024)) == Stride(8)
    assert build().stride(member(), view_of(1000, budget=1024)) == Stride(512)


@pytest.mark.parametrize(
    ("field", "value"), [("margin", 0), ("floor", 0), ("cap", 0), ("near_end", -0.1), ("unknown", 1.5)]
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.remainder\.{field} = "):
        build(**{field: value})


def test_contradictions_are_refused():
    build().check(8, 100)
    build(floor=100, cap=100).check(8, 8192)
    with pytest.raises(ConfigError, match=r"remainder\.floor = 101 must not exceed .*cap = 100"):
        build(floor=101, cap=100).check(8, 8192)
    with pytest.raises(ConfigError, match=r"mechanisms\.remainder\.cap = 9000 is longer"):
        build(cap=9000).check(8, 8192)
