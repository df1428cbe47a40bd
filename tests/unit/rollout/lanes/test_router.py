"""3.1 by hand: who is surely short, for how long, and who has to leave the fast lane."""

import pytest
from tests.helpers.rollout import FakeView, finish, make_group, make_plan, make_prompt, write
from tests.unit.history.helpers import bound, record

from untail.errors import ConfigError
from untail.rollout.lanes import router  # noqa: F401  (registers)
from untail.rollout.live import Member, Route, State
from untail.rollout.points import MECHANISMS, Verdict

PROMPT = make_prompt(0)


def build(**fields):
    return MECHANISMS.build({"name": "router", **fields}, "mechanisms.router")


def view_of(*lengths: int, **fields) -> FakeView:
    """After the warm-up, with one group of these lengths in the history."""
    view = FakeView(**{"step": 51, **fields})
    if lengths:
        view.history.add([record(length, PROMPT.id) for length in lengths])
    return view


def member(**plan) -> Member:
    return make_group(make_plan(PROMPT, **plan)).members[0]


def lane(view: FakeView, **fields) -> str:
    return build(**fields).route(member(), view).lane


# Two lengths m - d and m + d have mean m and std d * sqrt(2).
def test_mean_plus_std_must_stay_below_the_threshold():
    assert lane(view_of(1928, 2028)) == "segment"  # 1978 + 70.7 = 2048.7
    assert lane(view_of(1927, 2027)) == "fast"  # 1977 + 70.7 = 2047.7
    assert lane(view_of(2048, 2048)) == "segment"  # below, not at
    assert lane(view_of(2047, 2047)) == "fast"


def test_std_may_be_half_the_mean():
    assert lane(view_of(65, 135)) == "fast"  # mean 100, std 49.5
    assert lane(view_of(50, 100, 150)) == "fast"  # mean 100, std 50
    assert lane(view_of(64, 136)) == "segment"  # mean 100, std 50.9


def test_two_finished_lengths_are_needed():
    assert lane(view_of()) == "segment"
    assert lane(view_of(100)) == "segment"
    assert lane(view_of(100, 100)) == "fast"
    lower_bounds = view_of()
    lower_bounds.history.add([bound(100, prompt=PROMPT.id), bound(100, prompt=PROMPT.id)])
    assert lane(lower_bounds) == "segment"


def test_finished_siblings_count_where_the_prompt_has_no_history():
    group = make_group(make_plan(PROMPT, 4))
    finish(group.members[0], 100)
    assert build().route(group.members[3], view_of()).lane == "segment"
    finish(group.members[1], 110)
    assert build().route(group.members[3], view_of()).lane == "fast"


def test_the_fast_lane_runs_to_its_safety_cap():
    assert build().route(member(), view_of(100, 100)) == Route("fast", stride=3072)


def test_the_threshold_scales_with_a_small_budget():
    view = view_of(100, 100, budget=1024)  # T = 256
    assert build().route(member(), view) == Route("fast", stride=384)
    assert lane(view_of(255, 255, budget=1024)) == "fast"
    assert lane(view_of(256, 256, budget=1024)) == "segment"
    assert lane(view_of(2047, 2047, budget=32768)) == "fast"


def test_without_a_warm_up_the_first_step_routes():
    assert lane(view_of(100, 100, step=1), warmup_steps=0) == "fast"
    assert lane(view_of(100, 100, step=1), warmup_steps=1) == "segment"


@pytest.mark.parametrize(
    ("prompts", "step", "expected"),
    [
        (1000, 50, "segment"),
        (1000, 51, "fast"),
        (16, 4, "segment"),
        (16, 5, "fast"),
        (17, 5, "segment"),
        (17, 6, "fast"),
    ],
)
def test_warm_up_is_fifty_steps_or_the_first_epoch(prompts, step, expected):
    """Four groups a step: 16 prompts last for 4 steps, and 17 reach into the fifth."""
    assert lane(view_of(100, 100, step=step, wanted=4, prompts=[PROMPT] * prompts)) == expected


def test_whoever_has_tokens_is_demoted_and_stays_demoted():
    view, one = view_of(100, 100), member()
    one.route = Route("fast", stride=3072)
    write(one, [1] * 3072)
    one.route = build().route(one, view)
    assert one.route == Route("segment")
    assert build().route(one, view) == Route("segment")


@pytest.mark.parametrize(("failures", "scale"), [(2, 1.0), (3, 0.5), (4, 0.5)])
def test_a_prompt_that_keeps_failing_gets_half_strides(failures, scale):
    view = view_of()
    for _ in range(failures):
        view.history.add([record(5000, PROMPT.id, reward=0.0)])
    assert build().route(member(), view) == Route("segment", scale=scale)


def crowd(*lengths: int, lanes: str = "fast") -> FakeView:
    group = make_group(make_plan(PROMPT, len(lengths)))
    for one, length in zip(group.members, lengths, strict=True):
        write(one, [1] * length)
        one.state, one.route = State.RUNNING, Route(lanes)
    return view_of(groups=[group], kv_used=0.9)


def looks(view: FakeView) -> list[Verdict | None]:
    watch = build()
    return [watch.look(one, view) for group in view.groups for one in group.members]


CUT = Verdict("cut", "kv")


def test_at_the_watermark_the_longest_is_cut_and_nobody_else():
    assert looks(crowd(10, 30, 20)) == [None, CUT, None]


def test_below_the_watermark_nobody_is_cut():
    view = crowd(10, 30, 20)
    view.kv_used = 0.899
    assert looks(view) == [None] * 3


def test_of_equals_the_first_admitted_is_cut():
    assert looks(crowd(30, 30)) == [CUT, None]


def test_one_that_is_being_cut_is_waited_for():
    view = crowd(10, 30, 20)
    view.groups[0].members[1].cutting = True
    assert looks(view)[::2] == [None, None]
    view.groups[0].members[1].state = State.WAITING
    assert build().look(view.groups[0].members[2], view) == CUT


def test_members_in_segments_neither_count_nor_are_cut():
    assert looks(crowd(10, 30, lanes="segment")) == [None, None]
    view = crowd(10, 30, 20)
    view.groups[0].members[1].route = Route("segment")
    assert looks(view) == [None, None, CUT]


def test_the_longest_is_looked_for_in_all_groups():
    view = crowd(10, 30)
    view.groups.append(crowd(40).groups[0])
    assert looks(view) == [None, None, CUT]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threshold", 0),
        ("stds", -1),
        ("min_count", 0),
        ("max_spread", -0.1),
        ("warmup_steps", -1),
        ("safety", 0.9),
        ("watermark", 1.1),
        ("failing_streak", 0),
        ("failing_scale", 0),
        ("failing_scale", 1.1),
    ],
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.router\.{field} = "):
        build(**{field: value})


def test_a_threshold_over_the_budget_is_refused():
    build(threshold=8192).check(8, 512)
    build(threshold=16384).check(8, 16384)
    with pytest.raises(ConfigError, match=r"mechanisms\.router\.threshold = 16385 .* 16384"):
        build(threshold=16385).check(8, 16384)
    with pytest.raises(ConfigError, match=r"at most 8192"):
        build(threshold=8193).check(8, 512)
