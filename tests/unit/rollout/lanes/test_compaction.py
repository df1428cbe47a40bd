"""3.4 by hand: as many groups as fill the free slots, never more than four batches ahead."""

import pytest
from tests.helpers.rollout import FakeView, make_group, make_prompt, whole

from untail.errors import ConfigError
from untail.rollout.lanes import compaction  # noqa: F401  (registers)
from untail.rollout.points import MECHANISMS


def build(**fields):
    return MECHANISMS.build({"name": "compaction", **fields}, "mechanisms.compaction")


def view_of(under_way: int = 0, ready: int = 0, **fields) -> FakeView:
    groups = [make_group(name=f"g{n}") for n in range(under_way)]
    finished = [whole(make_prompt(n), [0.0, 1.0]) for n in range(ready)]
    return FakeView(groups=groups, ready=finished, **{"concurrency": 64, "group": 8, "wanted": 4, **fields})


@pytest.mark.parametrize(("running", "groups"), [(0, 8), (56, 1), (55, 2), (63, 1), (64, 0)])
def test_fills_the_free_slots(running, groups):
    assert build().refill(view_of(running=running)) == groups


@pytest.mark.parametrize(("under_way", "ready", "groups"), [(9, 0, 7), (0, 9, 7), (12, 3, 1), (12, 4, 0), (20, 4, 0)])
def test_never_more_than_four_batches_ahead(under_way, ready, groups):
    assert build().refill(view_of(under_way, ready)) == groups


def test_nothing_new_starts_in_a_full_pool():
    assert build().refill(view_of(kv_used=0.899)) == 8
    assert build().refill(view_of(kv_used=0.9)) == 0
    assert build(watermark=1.0).refill(view_of(kv_used=0.9)) == 8


def test_how_far_ahead_is_a_field():
    assert build(ahead=1).refill(view_of(under_way=3)) == 1
    assert build(ahead=1.4).refill(view_of(under_way=3)) == 2  # 5.6 groups: 5 are within
    with pytest.raises(ConfigError, match=r"mechanisms\.compaction\.ahead = 0.9"):
        build(ahead=0.9)
