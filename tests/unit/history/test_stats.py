"""What follows from records: groups, lower bounds, successes, streaks, quantiles."""

import random
from statistics import fmean, stdev

import pytest
from tests.unit.history.helpers import bound, history, record

from untail.history.stats import TaskLengths


def stats_of(*groups):
    return history(*groups).stats("p")


def test_an_unknown_prompt_has_no_stats():
    assert history().stats("p") is None
    assert history().task_lengths("sums") is None


def test_the_length_follows_group_means():
    stats = stats_of([record(100), record(300)], [record(400), record(600), record(800)])
    assert stats.length_ema == 0.5 * 200 + 0.5 * 600
    assert stats.length_std == pytest.approx(stdev([100, 300, 400, 600, 800]))
    assert (stats.count, stats.finished, stats.length_max) == (5, 5, 800)


def test_one_call_may_bring_several_groups():
    together = history([record(100, "a"), record(10, "b"), record(300, "a"), record(30, "b")])
    assert together.stats("a").length_ema == 200
    assert together.stats("b").length_ema == 20


def test_one_response_has_no_spread():
    assert stats_of([record(100)]).length_std == 0


def test_a_bound_above_its_siblings_raises_the_estimate():
    stats = stats_of([record(100), record(200), bound(450)])
    assert stats.length_ema == 250  # (100 + 200 + 450) / 3
    assert stats.length_max == 450
    assert (stats.count, stats.finished) == (3, 2)
    assert stats.length_std == pytest.approx(stdev([100, 200]))


def test_a_bound_below_the_estimate_changes_nothing_about_lengths():
    plain, with_bounds = stats_of([record(100), record(200)]), stats_of([record(100), record(200), bound(20)])
    assert (with_bounds.length_ema, with_bounds.length_max) == (plain.length_ema, plain.length_max)
    later = stats_of([record(100), record(200)], [bound(20), bound(149)])
    assert (later.length_ema, later.length_max) == (plain.length_ema, plain.length_max)


def test_bounds_alone_are_the_estimate_until_something_finishes():
    stats = stats_of([bound(300), bound(500)])
    assert (stats.length_ema, stats.finished, stats.length_std) == (400, 0, 0)
    raised = stats_of([record(100)], [bound(300)])
    assert raised.length_ema == 0.5 * 100 + 0.5 * 300


def test_a_bound_never_lowers_the_estimate():
    rng = random.Random(0)
    for _ in range(300):
        groups = [[record(rng.randrange(1000)) for _ in range(rng.randrange(1, 5))] for _ in range(3)]
        extra = [bound(rng.randrange(1000)) for _ in range(rng.randrange(1, 4))]
        before = stats_of(*groups)
        assert stats_of(*groups, extra).length_ema >= before.length_ema
        assert stats_of(*groups[:2], groups[2] + extra).length_ema >= before.length_ema


def test_successes_and_failures():
    stats = stats_of([record(1, reward=1.0), record(1, reward=0.2), record(1, reward=0.0), record(1, reward=-1.0)])
    assert (stats.successes, stats.failures) == (2, 2)


def test_an_unknown_reward_is_neither_success_nor_failure():
    stats = stats_of([bound(10), record(1, reward=None), bound(10, reward=-1.0)])
    assert (stats.successes, stats.failures) == (0, 1)


def test_the_streak_counts_groups_without_a_reward():
    nothing = [record(1, reward=0.0), record(1, reward=-1.0)]
    assert stats_of(nothing).zero_streak == 1
    assert stats_of(nothing, nothing, nothing).zero_streak == 3
    assert stats_of(nothing, [record(1, reward=0.0), record(1, reward=1.0)]).zero_streak == 0
    assert stats_of(nothing, nothing, [bound(5), bound(5)]).zero_streak == 2
    assert stats_of(nothing, [bound(5), record(1, reward=0.0)]).zero_streak == 2


def test_the_last_step():
    assert stats_of([record(1, step=3)], [record(1, step=7)]).last_step == 7


def test_quantiles_are_exact():
    rng = random.Random(1)
    lengths = [rng.randrange(1, 60) for _ in range(999)]
    task = TaskLengths()
    task.take(lengths[:500])
    task.quantile(0.5)
    task.take(lengths[500:])
    ordered = sorted(lengths)
    assert task.count == 999
    assert task.quantile(0.5) == ordered[499]
    assert task.quantile(0.84) == ordered[839]  # 0.84 x 999 = 839.16: the 840th
    assert (task.quantile(0), task.quantile(1)) == (ordered[0], ordered[-1])


def test_a_task_knows_the_finished_lengths_of_its_own_prompts():
    store = history([record(10, "a"), bound(90, prompt="a")], [record(20, "b")], [record(70, "c", task="other")])
    assert store.task_lengths("sums").count == 2
    assert store.task_lengths("sums").quantile(1) == 20
    assert store.task_lengths("other").quantile(0.5) == 70
    assert history([bound(90)]).task_lengths("sums") is None


def test_the_mean_of_a_group_is_a_better_estimate_than_its_last_responses():
    """Why the EMA takes groups: against one that takes responses, on prompts of different length."""
    rng = random.Random(2)
    by_group, by_response = [], []
    for _ in range(200):
        mean = rng.uniform(50, 500)
        lengths = [max(1, round(rng.gauss(mean, 0.4 * mean))) for _ in range(8)]
        ema = float(lengths[0])
        for length in lengths[1:]:
            ema += 0.5 * (length - ema)
        by_group.append(abs(stats_of([record(length) for length in lengths]).length_ema - mean))
        by_response.append(abs(ema - mean))
    assert fmean(by_group) < 0.8 * fmean(by_response)
