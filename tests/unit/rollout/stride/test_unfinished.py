"""3.3a by hand: the first stride, the ratio's line, the last stride, the KV load."""

import pytest
from tests.helpers.rollout import FakeView, finish, make_group, make_plan, make_prompt, write
from tests.unit.history.helpers import record

from untail.errors import ConfigError
from untail.rollout.live import Member, State
from untail.rollout.points import MECHANISMS, Stride
from untail.rollout.stride import unfinished  # noqa: F401  (registers)

PROMPT = make_prompt(0)


def build(**fields):
    return MECHANISMS.build({"name": "unfinished", **fields}, "mechanisms.unfinished")


def at_boundary(open_members: int, size: int = 10, gone: int = 0) -> Member:
    """One of `open_members` that are unfinished."""
    group = make_group(make_plan(PROMPT, size + gone))
    for member in group.members[open_members:]:
        finish(member, 100)
    for member in group.members[size:]:
        member.state = State.GONE
    return write(group.members[0], [1] * 100)


def view_of(*lengths: int, **fields) -> FakeView:
    view = FakeView(**fields)
    if lengths:
        view.history.add([record(length, PROMPT.id) for length in lengths])
    return view


def first(view: FakeView) -> Stride:
    return build().stride(make_group(make_plan(PROMPT)).members[0], view)


def test_the_first_stride_is_the_predicted_mean():
    assert first(view_of(300, 500)) == Stride(400)
    assert first(view_of(5000, 5000)) == Stride(4096)


def test_the_first_stride_without_a_prediction_is_a_quarter_of_the_cap():
    assert first(view_of()) == Stride(1024)
    assert first(view_of(budget=1024)) == Stride(128)


def test_the_cap_scales_but_the_prediction_does_not():
    assert first(view_of(300, 500, budget=1024)) == Stride(400)
    assert first(view_of(600, 600, budget=1024)) == Stride(512)


@pytest.mark.parametrize(("open_members", "tokens"), [(10, 1024), (9, 1024), (8, 1024), (5, 768), (4, 683), (2, 512)])
def test_linear_between_the_two_ratios(open_members, tokens):
    """R = 0.4: 512 + 512 x 0.2 / 0.6 = 682.7."""
    assert build().stride(at_boundary(open_members), view_of()) == Stride(tokens)


def test_the_last_few_finish_in_place():
    member = at_boundary(1)
    assert build().stride(member, view_of()) == Stride(8192 - 100, in_place=True)
    assert build(last="small").stride(member, view_of()) == Stride(512)


def test_whoever_is_gone_does_not_count():
    """2 of 10 is not below 0.2, and 2 of 11 is."""
    assert build().stride(at_boundary(2, size=10, gone=5), view_of()) == Stride(512)
    assert build().stride(at_boundary(2, size=11), view_of()).in_place


def test_lengths_scale_with_the_budget():
    assert build().stride(at_boundary(5), view_of(budget=1024)) == Stride(96)


@pytest.mark.parametrize(
    ("load", "tokens"), [(0.0, 1024), (0.5, 1024), (0.75, 512), (0.875, 256), (0.9, 256), (1, 256)]
)
def test_shorter_as_the_kv_load_rises(load, tokens):
    assert build().stride(at_boundary(10), view_of(kv_used=load)) == Stride(tokens)
    assert first(view_of(kv_used=load)) == Stride(tokens)


def test_the_load_does_not_keep_the_last_few_from_finishing():
    assert build().stride(at_boundary(1), view_of(kv_used=0.9)) == Stride(8092, in_place=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [("cap", 0), ("unknown", 0), ("many", 1.1), ("few", -0.1), ("last", "all"), ("free_load", 1), ("load_floor", 0)],
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.unfinished\.{field} = "):
        build(**{field: value})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"few": 0.8}, r"few = 0\.8 must be below .*many = 0\.8"),
        ({"small": 2000}, "small <= large <= cap, but they are 2000, 1024 and 4096"),
        ({"large": 5000}, "small <= large <= cap, but they are 512, 5000 and 4096"),
        ({"cap": 9000}, r"mechanisms\.unfinished\.cap = 9000 is longer"),
    ],
)
def test_contradictions_are_refused(fields, message):
    build().check(8, 512)
    build(small=1024, cap=1024).check(8, 512)
    with pytest.raises(ConfigError, match=message):
        build(**fields).check(8, 8192)
