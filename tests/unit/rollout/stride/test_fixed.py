"""3.2: the longest response in equal parts."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.points import MECHANISMS, Stride
from untail.rollout.stride import fixed  # noqa: F401  (registers)


def build(**fields):
    return MECHANISMS.build({"name": "fixed", **fields}, "mechanisms.fixed")


@pytest.mark.parametrize(
    ("segments", "budget", "tokens"), [(4, 8192, 2048), (4, 512, 128), (4, 513, 129), (1, 100, 100), (100, 100, 1)]
)
def test_rounded_up(segments, budget, tokens):
    member = make_group().members[0]
    assert build(segments=segments).stride(member, FakeView(budget=budget)) == Stride(tokens)


def test_every_stride_is_the_same():
    member = write(make_group().members[0], [1] * 2048)
    assert build().stride(member, FakeView()) == Stride(2048)


def test_more_segments_than_tokens_are_refused():
    build(segments=100).check(8, 100)
    with pytest.raises(ConfigError, match=r"mechanisms\.fixed\.segments = 101 .* at most 100"):
        build(segments=101).check(8, 100)
    with pytest.raises(ConfigError, match=r"mechanisms\.fixed\.segments = 0"):
        build(segments=0)
