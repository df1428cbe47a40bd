"""3.4 by hand: as many groups as fill the free slots, never more than four batches ahead."""

import pytest
from tests.helpers.rollout import FakeView, make_group, make_prompt, whole

from untail.errors import ConfigError
from untail.rollout.lanes import compaction  # noqa: F401  (registers)
from untail.rollout.points import MECHANISMS


def build(**fields):
    return MECHANISMS.build({"name": "compaction", **fields}, "mechanisms.compaction")


def view_of(open: int = 0, ready: int = 0, **fields) -> FakeView:
    finished = [whole(make_prompt(n), [0.0, 1.0]) for n in range(ready)]
    return FakeView(open=open, ready=finished, **{"concurrency": 64, "group": 8, "wanted": 4, **fields})


@pytest.mark.parametrize(("running", "groups"), [(0, 8), (56, 1), (55, 2), (63, 1), (64, 0)])
def test_fills_the_free_slots(running, groups):
    assert build().refill(view_of(running=running)) == groups


@pytest.mark.parametrize(("open", "ready", "groups"), [(72, 0, 7), (0, 9, 7), (96, 3, 1), (97, 3, 0), (160, 4, 0)])
def test_never_more_than_four_batches_ahead(open, ready, groups):
    assert build().refill(view_of(open, ready)) == groups


def test_a_straggler_counts_as_one_and_not_as_its_group():
    stragglers = [make_group(name=f"g{n}") for n in range(16)]  # four batches of groups, of which one member each runs
    assert build().refill(view_of(open=16, groups=stragglers)) == 8


def test_nothing_new_starts_in_a_full_pool():
    assert build().refill(view_of(kv_used=0.899)) == 8
    assert build().refill(view_of(kv_used=0.9)) == 0
    assert build(watermark=1.0).refill(view_of(kv_used=0.9)) == 8


def test_how_far_ahead_is_a_field():
    assert build(ahead=1).refill(view_of(open=24)) == 1
    assert build(ahead=1.4).refill(view_of(open=24)) == 2  # 5.6 groups: 5 are within
    with pytest.raises(ConfigError, match=r"mechanisms\.compaction\.ahead = 0.9"):
        build(ahead=0.9)
