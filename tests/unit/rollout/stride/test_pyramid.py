"""3.3c by hand: one long stride, short ones after it, and none cut while the end is likely."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.points import MECHANISMS, Stride
from untail.rollout.stride import pyramid  # noqa: F401  (registers)


def build(**fields):
    return MECHANISMS.build({"name": "pyramid", **fields}, "mechanisms.pyramid")


def at_boundary(*stretches: tuple[int, float]):
    """So many tokens with such a p(eos), in order."""
    member = make_group().members[0]
    for tokens, p_eos in stretches:
        write(member, [1] * tokens, p_eos=p_eos)
    return member


def test_long_first_then_short():
    assert build().stride(make_group().members[0], FakeView()) == Stride(4096)
    assert build().stride(at_boundary((4096, 0.0)), FakeView()) == Stride(1024)


@pytest.mark.parametrize(("p_eos", "in_place"), [(0.02, False), (0.0201, True)])
def test_goes_on_while_the_end_is_likely(p_eos, in_place):
    member = at_boundary((4000, 0.0), (1, p_eos), (15, 0.001))
    assert build().stride(member, FakeView()) == Stride(1024, in_place)


def test_only_the_last_sixteen_tokens_count():
    assert build().stride(at_boundary((100, 0.0), (1, 0.9), (15, 0.0)), FakeView()).in_place
    assert not build().stride(at_boundary((100, 0.0), (1, 0.9), (16, 0.0)), FakeView()).in_place


def test_strides_scale_with_the_budget_and_the_window_does_not():
    view = FakeView(budget=512)
    assert build().stride(make_group().members[0], view) == Stride(256)
    assert build().stride(at_boundary((1, 0.9), (15, 0.0)), view) == Stride(64, in_place=True)


@pytest.mark.parametrize(("field", "value"), [("first", 0), ("then", 0), ("window", 0), ("p_eos", 1.1)])
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.pyramid\.{field} = "):
        build(**{field: value})


@pytest.mark.parametrize("field", ["first", "then"])
def test_a_stride_over_the_budget_is_refused(field):
    build().check(8, 16)
    with pytest.raises(ConfigError, match=rf"mechanisms\.pyramid\.{field} = 8193 is longer"):
        build(**{field: 8193}).check(8, 8192)
