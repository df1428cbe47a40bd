"""3.3d by hand: the EMA of window means, its std, and where a segment is cut."""

import math
from statistics import fmean, pstdev

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.errors import ConfigError
from untail.rollout.live import Member, Route
from untail.rollout.points import MECHANISMS, Stride, Verdict
from untail.rollout.stride.entropy import Level

CUT = Verdict("cut", "entropy")
CALM = [0.4, 0.6] * 8  # 512 tokens with mean 0.5 and std 0.1


def build(**fields):
    return MECHANISMS.build({"name": "entropy", **fields}, "mechanisms.entropy")


def windows(member: Member, means: list[float], size: int = 32) -> Member:
    for mean in means:
        write(member, [1] * size, entropy=mean)
    return member


def member() -> Member:
    return make_group().members[0]


def test_the_level_is_a_plain_mean_for_the_first_ten_and_an_ema_from_then_on():
    level, values = Level(), [0.3, 0.1, 0.8, 0.4, 0.2, 0.9, 0.5, 0.6, 0.7, 0.35]
    for value in values:
        level.take(value, ema=0.1)
    assert level.mean == pytest.approx(fmean(values))
    assert math.sqrt(level.variance) == pytest.approx(pstdev(values))
    before, variance = level.mean, level.variance
    level.take(1.5, ema=0.1)
    assert level.mean == pytest.approx(0.9 * before + 0.1 * 1.5)
    assert level.variance == pytest.approx(0.9 * variance + 0.09 * (1.5 - before) ** 2)


def reference(means: list[float]) -> tuple[float, float]:
    """EMA and std by weights written out: the newest has 0.1, the plain mean before it the rest."""
    weights: list[float] = []
    for n in range(1, len(means) + 1):
        newest = max(0.1, 1 / n)
        weights = [(1 - newest) * weight for weight in weights] + [newest]
    mean = sum(w * x for w, x in zip(weights, means, strict=True))
    return mean, math.sqrt(sum(w * (x - mean) ** 2 for w, x in zip(weights, means, strict=True)))


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("stds", "verdict"), [(1.9999, None), (2.0001, CUT)])
def test_cuts_where_the_mean_leaves_the_ema_by_two_std(side, stds, verdict):
    mean, std = reference(CALM)
    one = windows(member(), [*CALM, mean + side * stds * std])
    assert build().look(one, FakeView()) == verdict


def test_tokens_arrive_in_chunks_of_any_size():
    """The same verdict as at once, at the first look that sees the whole window."""
    entropy = [mean for mean in [*CALM, 2.0] for _ in range(32)]
    mechanism, one, verdicts = build(), member(), []
    for token in range(0, len(entropy), 17):
        for value in entropy[token : token + 17]:
            write(one, [1], entropy=value)
        verdicts.append(mechanism.look(one, FakeView()))
    assert verdicts == [None] * (len(verdicts) - 1) + [CUT]


def test_a_window_counts_once_it_is_whole():
    mechanism, one = build(), windows(member(), CALM)
    assert mechanism.look(write(one, [1] * 31, entropy=2.0), FakeView()) is None
    assert mechanism.look(write(one, [1], entropy=2.0), FakeView()) == CUT


def test_an_event_is_told_once():
    mechanism, one = build(), windows(member(), [*CALM, 2.0])
    assert mechanism.look(one, FakeView()) == CUT
    assert mechanism.look(one, FakeView()) is None


@pytest.mark.parametrize(("before", "verdict"), [(14, None), (15, CUT)])
def test_nothing_is_cut_before_the_shortest_stride(before, verdict):
    """512 tokens are 16 windows: the sixteenth may be one."""
    one = windows(member(), [*CALM[:before], 2.0])
    assert build().look(one, FakeView()) == verdict


def test_the_shortest_stride_counts_from_where_the_segment_began():
    one = windows(member(), [*CALM, *CALM[:15], 2.0])
    one.segment_begin = 513
    assert build().look(one, FakeView()) is None
    one.segment_begin = 512
    assert build().look(one, FakeView()) == CUT


def test_the_shortest_stride_shrinks_with_the_budget_and_with_the_route():
    one = windows(member(), [*CALM[:7], 2.0])  # 256 tokens
    assert build().look(one, FakeView()) is None
    assert build().look(one, FakeView(budget=4096)) == CUT
    one.route = Route("segment", scale=0.5)
    assert build().look(one, FakeView()) == CUT


@pytest.mark.parametrize(("before", "verdict"), [(3, None), (4, CUT)])
def test_four_windows_must_have_settled(before, verdict):
    one = windows(member(), [*CALM[:before], 2.0])
    assert build(min_stride=1).look(one, FakeView()) == verdict


def test_entropy_that_never_changes_is_no_event():
    assert build().look(windows(member(), [0.1] * 40), FakeView()) is None


def test_a_lane_that_sets_the_stride_is_not_disturbed():
    one = windows(member(), [*CALM, 2.0])
    one.route = Route("fast", stride=3072)
    assert build().look(one, FakeView()) is None


def test_members_do_not_mix_and_a_new_instance_says_the_same():
    mechanism, (one, other) = build(), make_group().members[:2]
    windows(one, CALM)
    windows(other, [2.0] * 16)
    assert mechanism.look(one, FakeView()) is None
    assert mechanism.look(other, FakeView()) is None
    windows(one, [2.0])
    windows(other, [2.0])
    assert mechanism.look(one, FakeView()) == build().look(one, FakeView()) == CUT
    assert mechanism.look(other, FakeView()) is None


def test_only_members_under_way_are_remembered():
    mechanism, kept, over = build(), make_group(name="g1"), make_group(name="g2")
    for group in (kept, over):
        mechanism.look(windows(group.members[0], CALM), FakeView())
    mechanism.after_step([], FakeView(groups=[kept]))
    assert list(mechanism._levels) == ["g1/0"]


def test_the_stride_is_the_longest():
    assert build().stride(member(), FakeView()) == Stride(4096)
    assert build().stride(member(), FakeView(budget=512)) == Stride(256)


def test_it_needs_entropies():
    assert build().needs_entropy


@pytest.mark.parametrize(
    ("field", "value"), [("min_stride", 0), ("max_stride", 0), ("window", 0), ("stds", 0), ("ema", 1.1), ("settle", 0)]
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.entropy\.{field} = "):
        build(**{field: value})


def test_contradictions_are_refused():
    build().check(8, 64)
    build(min_stride=512, max_stride=512).check(8, 8192)
    with pytest.raises(ConfigError, match=r"min_stride = 513 must not exceed .*max_stride = 512"):
        build(min_stride=513, max_stride=512).check(8, 8192)
    with pytest.raises(ConfigError, match=r"mechanisms\.entropy\.max_stride = 9000 is longer"):
        build(max_stride=9000).check(8, 8192)
