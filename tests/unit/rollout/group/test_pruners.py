"""5.1, 5.2, 5.3 and 5.5, each alone: whom it would prune in a group made by hand."""

from collections import Counter

import pytest
from tests.helpers.rollout import FakeView
from tests.unit.rollout.group.helpers import at_boundary, build, numbers

from untail.errors import ConfigError
from untail.types import Segment

LONG = list(range(200))
VIEW = FakeView()


def changed(text: list[int], places: int) -> list[int]:
    return [-1] * places + text[places:]


# ---- 5.1 -----------------------------------------------------------------------------------------------------------


def test_of_two_duplicates_the_later_goes():
    group = at_boundary(LONG, changed(LONG, 2), changed(LONG, 3), [7] * 200, finished=4)
    verdicts = build("duplicates").decide(group, VIEW)
    assert numbers(verdicts) == [1]
    (verdict,) = verdicts.values()
    assert (verdict.act, verdict.reason, verdict.stopped) == ("stop", "duplicate", "mask")
    assert numbers(build("duplicates", share=0.98).decide(group, VIEW)) == [1, 2]


def test_a_segment_that_goes_on_is_no_duplicate():
    assert not build("duplicates").decide(at_boundary(LONG, LONG[:150], finished=4), VIEW)


# ---- the floor -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("open_", "finished", "floor", "pruned"),
    [(8, 0, 0.5, 4), (8, 0, 0.9, 0), (8, 0, 0.0, 6), (4, 4, 0.5, 3), (2, 6, 0.5, 1)],
)
def test_no_more_go_than_the_floor_allows(open_, finished, floor, pruned):
    group = at_boundary(*[LONG] * open_, finished=finished)
    assert len(build("duplicates", floor=floor).decide(group, VIEW)) == pruned


def test_those_that_were_stopped_before_count_as_gone():
    group = at_boundary(*[LONG] * 8)
    for member in group.members[5:]:
        member.trajectory.stopped = "loop"
    assert len(build("duplicates").decide(group, VIEW)) == 1


@pytest.mark.parametrize("name", ["duplicates", "outliers", "tournament"])
def test_a_group_that_is_too_small_for_the_floor_is_refused(name):
    build(name).check(3, 512)
    build(name, floor=0.0).check(3, 512)
    with pytest.raises(ConfigError, match=rf"rollout.group = 2 is too small for mechanisms.{name}: it has to keep 2"):
        build(name).check(2, 512)
    with pytest.raises(ConfigError, match=r"rollout\.group = 8 is too small"):
        build(name, floor=0.9).check(8, 512)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("tournament", "share", 0), ("tournament", "share", 1), ("tournament", "share", -0.1),
        ("outliers", "probability", 1.1), ("outliers", "decile", -1), ("outliers", "mads", -1),
        ("outliers", "combine", "both"), ("duplicates", "share", 1.01), ("duplicates", "floor", 1),
        ("mode_collapse", "share", 2), ("fork", "k", 0), ("fork", "warmest", 0.9), ("fork", "parents", "worst"),
    ],
)  # fmt: skip
def test_a_field_out_of_range_is_refused(name, field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms.{name}.{field} = {value!r} is not valid"):
        build(name, **{field: value})


# ---- 5.2 -----------------------------------------------------------------------------------------------------------

SAME = [[1, 2, 3, 4, 5, n] for n in range(10, 19)]
ODD = [90, 91, 92, 93, 94, 95]
SURE = {"probability": 1.0}


def group_of(entropies: dict[int, float]):
    """Nine alike and one unlike, number 9; entropies but these are spread around 1."""
    values = [entropies.get(number, 1.0 + number / 100) for number in range(10)]
    return at_boundary(*SAME, ODD, entropy=values)


def test_the_far_and_flat_one_goes():
    assert numbers(build("outliers", **SURE).decide(group_of({9: 0.1}), VIEW)) == [9]


def test_far_or_flat_alone_is_not_enough():
    assert not build("outliers", **SURE).decide(group_of({3: 0.1}), VIEW)
    assert not build("outliers", **SURE).decide(group_of({9: 1.03}), VIEW)


def test_any_of_them_is_enough_where_the_recipe_says_so():
    mechanism = build("outliers", combine="any", **SURE)
    assert numbers(mechanism.decide(group_of({3: 0.1, 9: 0.5}), VIEW)) == [9, 3]
    group = at_boundary(*SAME, entropy=[1.0] * 9)
    group.members[2].partial, group.members[4].partial = 0.4, 0.5
    assert numbers(build("outliers", combine="any", **SURE).decide(group, VIEW)) == [2]
    assert (mechanism.wants_partial, build("outliers").wants_partial) == (True, False)


def test_one_that_explores_is_left_alone_unless_both_ends_count():
    lively = {9: 9.0}
    for combine in ("all", "any"):
        assert 9 not in numbers(build("outliers", combine=combine, **SURE).decide(group_of(lively), VIEW))
        both = build("outliers", combine=combine, entropy="both", **SURE)
        assert 9 in numbers(both.decide(group_of(lively), VIEW))


def test_flat_is_by_what_the_whole_step_has_seen():
    mechanism = build("outliers", **SURE)
    for _ in range(3):
        mechanism.decide(group_of(dict.fromkeys(range(9), 0.01) | {9: 1.0}), VIEW)
    assert not mechanism.decide(group_of({9: 0.1}), VIEW), "27 of 40 were flatter"
    assert numbers(mechanism.decide(group_of({9: 0.1}), FakeView(step=2))) == [9], "a new step begins anew"


def test_it_is_pruned_with_a_probability():
    mechanism, acts = build("outliers", probability=0.5), Counter()
    for step in range(1, 401):
        (verdict,) = mechanism.decide(group_of({9: 0.1}), FakeView(step=step)).values()
        acts[verdict.act] += 1
        assert verdict.chance == 0.5
    assert 160 <= acts["stop"] <= 240
    assert acts["stop"] + acts["spare"] == 400
    (verdict,) = build("outliers", probability=0.0).decide(group_of({9: 0.1}), VIEW).values()
    assert verdict.act == "spare"


def test_only_what_leaves_a_chance_is_random():
    assert not build("outliers", probability=0.9).prunes_surely
    assert build("outliers", **SURE).prunes_surely
    assert build("tournament").prunes_surely
    assert build("mode_collapse").prunes_surely


def test_where_all_are_the_same_nobody_is_far():
    assert not build("outliers", combine="any", **SURE).decide(at_boundary(*[LONG] * 6, entropy=[0.5] * 6), VIEW)


# ---- 5.3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "pruned"), [(0.5, [0, 1, 2]), (0.3, [0]), (0.34, [0, 1]), (0.1, [])])
def test_the_lowest_share_goes(share, pruned):
    """They are alike in all but how sure they were."""
    group = at_boundary(*[LONG] * 6, logprob=[-6.0, -5.0, -4.0, -3.0, -2.0, -1.0])
    assert numbers(build("tournament", share=share).decide(group, VIEW)) == pruned


def test_one_that_is_alone_wins():
    assert not build("tournament").decide(at_boundary(LONG, finished=7), VIEW)


def test_similarity_and_partial_scores_count_too():
    group = at_boundary(*SAME[:5], ODD, logprob=[-1.0] * 6)
    assert numbers(build("tournament", share=0.2).decide(group, VIEW)) == [5]
    for member in group.members:
        member.partial = 1.0
    group.members[0].partial, group.members[5].partial = 0.0, None
    group = at_boundary(*SAME[:6], logprob=[-1.0] * 6)
    group.members[0].partial, group.members[1].partial = 0.0, 1.0
    assert numbers(build("tournament", share=0.2).decide(group, VIEW)) == [0]


# ---- 5.5 -----------------------------------------------------------------------------------------------------------


def test_of_a_group_that_has_collapsed_the_first_is_kept_whatever_the_floor():
    verdicts = build("mode_collapse").decide(at_boundary(*[changed(LONG, n) for n in range(6)]), VIEW)
    assert numbers(verdicts) == [1, 2, 3, 4, 5]
    assert {(v.reason, v.stopped) for v in verdicts.values()} == {("mode_collapse", "penalty")}


def test_one_that_is_different_saves_them_all():
    assert not build("mode_collapse").decide(at_boundary(LONG, LONG, changed(LONG, 10)), VIEW)
    assert not build("mode_collapse").decide(at_boundary(LONG, finished=3), VIEW)


# ---- across turns --------------------------------------------------------------------------------------------------


def replied(member, reply: int, logprob: float) -> None:
    """A turn, a reply of so many tokens, and another turn."""
    trajectory = member.trajectory
    trajectory.policy_logprob = [logprob] * len(trajectory.tokens)
    trajectory.take_reply([7] * reply, 0)
    trajectory.segments.append(Segment(len(trajectory.tokens) - reply, len(trajectory.tokens), "reply"))


def test_an_environment_s_words_are_nobody_s_merit():
    """The surest of four has the longest replies of all but one; the least sure, replies that would hide it."""
    group = at_boundary(*[LONG] * 4)
    for member, (reply, logprob) in zip(group.members, [(0, -1.0), (400, -2.0), (0, -0.5), (10, -0.7)], strict=True):
        replied(member, reply, logprob)
    assert numbers(build("tournament", share=0.25).decide(group, VIEW)) == [1]
    assert [copy.parent.id[-1] for copy in build("fork", parents="best").copies(group, 1, VIEW)] == ["2"]


def test_the_same_reply_makes_nobody_a_duplicate():
    group = at_boundary(LONG, list(reversed(LONG)), LONG[100:] + LONG[:100], LONG[50:] + LONG[:50])
    for member in group.members:
        replied(member, 300, -1.0)
    assert not build("duplicates").decide(group, VIEW)
    assert not build("mode_collapse").decide(group, VIEW)


def test_who_is_close_to_the_end_of_its_odds_is_drawn_no_more():
    mechanism = build("outliers", probability=0.5)
    group = group_of({9: 0.1})
    group.members[9].trajectory.survival = 0.125
    assert not mechanism.decide(group, VIEW)
    group.members[9].trajectory.survival = 0.25
    assert mechanism.decide(group, VIEW)
