"""Costs: what was measured comes back, what lies between is between, and the tail is in the rollout."""

import random

import pytest

from untail.errors import UserError
from untail.flow.cost import Curve, ExchangeCost, Point, Profiled, RankedCost, Rollout, Scaled, end_seconds


def test_a_curve_gives_back_what_was_measured_and_never_falls():
    curve = Curve([(4, 3.0), (1, 1.0), (2, 2.0), (8, 2.5), (2, 2.2)])
    assert curve(1) == 1.0
    assert curve(2) == pytest.approx(2.1)  # the mean of two
    assert curve(3) == pytest.approx(2.55)
    values = [curve(x) for x in range(1, 20)]
    assert values == sorted(values)


def test_a_curve_goes_on_beyond_its_points():
    curve = Curve([(10, 2.0), (20, 3.0)])
    assert curve(30) == pytest.approx(4.0)
    assert curve(5) == pytest.approx(1.5)  # with the same overhead
    assert Curve([(10, 2.0), (20, 8.0)])(5) == pytest.approx(1.0)  # not less than its share
    assert Curve([(10, 2.0)])(40) == pytest.approx(8.0)


def test_the_fullest_device_is_what_a_role_waits_for():
    cost = Profiled([Point(1, 8, 8.0, 10.0), Point(1, 16, 16.0, 10.0)], swap_s=0.25)
    assert cost.seconds(2, 16) == cost.seconds(1, 8) == pytest.approx(8.0)
    assert cost.seconds(3, 16) == pytest.approx(6.0)  # 6, 5 and 5 items
    assert cost.seconds(64, 16) == pytest.approx(cost.seconds(16, 16))  # there is no half of an item
    assert cost.memory_gib(4, 64) == 10.0
    assert cost.swap_s(4) == 0.25


def test_between_two_device_counts_the_figure_lies_between():
    cost = Profiled([Point(1, 8, 8.0, 40.0), Point(16, 128, 12.0, 10.0)])
    assert cost.seconds(1, 8) == pytest.approx(8.0)
    assert cost.seconds(16, 128) == pytest.approx(12.0)
    assert cost.seconds(4, 32) == pytest.approx(10.0)
    assert cost.memory_gib(4, 32) == pytest.approx(25.0)
    assert cost.seconds(64, 512) == pytest.approx(12.0)


@pytest.mark.parametrize("point", [Point(1, 0, 1.0), Point(1, 1, -1.0), Point(-1, 1, 1.0), Point(1, 1, float("nan"))])
def test_a_measurement_that_cannot_be_is_refused(point):
    with pytest.raises(UserError, match="cannot be"):
        Profiled([point])
    with pytest.raises(UserError, match="without measurements"):
        Profiled([])


TAU = Curve([(1, 1.0), (2, 1.5), (64, 5.0)])


def step_by_step(lengths: list[int], slots: int) -> list[float]:
    """What `end_seconds` computes, one token at a time."""
    left, ends, seconds = dict(enumerate(lengths)), [0.0] * len(lengths), 0.0
    while left:
        running = list(left)[:slots]
        seconds += TAU(len(running))
        for place in running:
            left[place] -= 1
            if not left[place]:
                del left[place]
                ends[place] = seconds
    return ends


def test_the_tail_is_the_sum_over_what_still_runs():
    ends = [2 * TAU(3) + 3 * TAU(2) + 5 * TAU(1), 2 * TAU(3), 2 * TAU(3) + 3 * TAU(2)]
    assert end_seconds([10, 2, 5], 64, TAU) == pytest.approx(ends)


@pytest.mark.parametrize("slots", [1, 2, 5, 64])
def test_slots_that_are_free_take_the_next(slots):
    draws = random.Random(slots)
    lengths = [1 + int(draws.expovariate(0.05)) for _ in range(40)]
    assert end_seconds(lengths, slots, TAU) == pytest.approx(step_by_step(lengths, slots))


def rollout(lengths: list[int], **changes) -> Rollout:
    return Rollout(**{"lengths": lengths, "tau": TAU, "group": 4, "slots": 64, "batch": 16, **changes})


def test_a_batch_is_the_mean_of_those_that_there_were():
    """The long ones of a prompt come together: half of the batches have three of them, the others none."""
    few = {"group": 2, "batch": 2, "slots": 4}
    with_long, without = [90, 90, 90, 10], [10, 10, 10, 10]
    both = rollout(with_long + without, **few)
    assert both._expected.tolist() == [50, 50, 50, 10]
    alone = [rollout(lengths, **few).seconds(1, 2) for lengths in (with_long, without)]
    assert both.seconds(1, 2) == pytest.approx(sum(alone) / 2)
    assert rollout([5, *with_long, *without], **few)._expected.tolist() == [50, 50, 50, 10]  # the oldest is left over


def test_no_number_of_devices_makes_a_rollout_shorter_than_its_longest_response():
    draws = random.Random(0)
    lengths = [1 + int(draws.paretovariate(1.2) * 10) for _ in range(400)]
    cost = rollout(lengths)
    seconds = [cost.seconds(devices, 16) for devices in range(1, 65)]
    assert seconds == sorted(seconds, reverse=True)
    longest = max(cost._expected)
    assert seconds[-1] == pytest.approx(longest * TAU(1))
    assert seconds[0] < 64 * seconds[-1] / 4  # the tail does not divide


def test_a_part_of_a_rollout_takes_its_part():
    cost = rollout([5, 50, 500], prefill_s=0.1, gib=3.0, load_s=0.2)
    assert cost.seconds(2, 4) == pytest.approx(cost.seconds(2, 16) / 4)
    assert cost.seconds(2, 16) - rollout([5, 50, 500]).seconds(2, 16) == pytest.approx(32 * 0.1)
    assert (cost.memory_gib(2, 4), cost.swap_s(2)) == (3.0, 0.2)
    with pytest.raises(UserError, match="lengths of responses"):
        rollout([])


def test_the_first_groups_leave_a_rollout_later_than_their_share():
    """All run at once, and with one response of a hundred tokens in four every group has about one of them."""
    cost = rollout([10, 10, 10, 100])
    whole = cost.seconds(1, 16)
    assert [cost.late_s(1, items) for items in (16, 32)] == [0.0, 0.0]
    first = cost.late_s(1, 4) + cost.seconds(1, 4)
    assert 0.3 * whole < first <= whole
    assert cost.late_s(1, 1) <= first, "nobody leaves after those who leave later"
    alike = rollout([100])
    assert alike.late_s(1, 4) == pytest.approx(0.75 * alike.seconds(1, 16)), "they leave together, in the end"
    one_by_one = rollout([100], slots=4)
    assert one_by_one.late_s(1, 4) == pytest.approx(0.0), "one after the other they leave at equal distances"
    assert Scaled(alike, 2.0).late_s(1, 4) == 2.0 * alike.late_s(1, 4)


def test_a_drifted_role_takes_so_much_more():
    cost = Scaled(Profiled([Point(1, 8, 8.0, 10.0)], swap_s=1.0), 1.5)
    assert (cost.seconds(1, 8), cost.memory_gib(1, 8), cost.swap_s(1)) == (12.0, 10.0, 1.0)


def test_ranks_share_the_items_and_pay_for_what_they_exchange():
    alone = Profiled([Point(1, 8, 8.0, 3.0)], swap_s=1.0)
    ranks = RankedCost(alone, 1, ExchangeCost(gib=2.0, items=2.0, gib_s=4.0, wait_s=0.25))
    assert ranks.seconds(1, 8) == 8.0
    assert ranks.seconds(2, 8) == pytest.approx(4.0 + 2 * (0.25 + 2.0 / 2 / 4.0)), "two passes each"
    assert ranks.seconds(8, 8) == pytest.approx(1.0 + 1 * (0.25 + 2.0 * 7 / 8 / 4.0)), "one at least"
    assert (ranks.memory_gib(4, 8), ranks.swap_s(4)) == (3.0, 1.0)


def test_of_ranks_that_were_measured_only_more_exchange_is_added():
    measured = Profiled([Point(1, 8, 8.0), Point(2, 8, 5.0)])
    ranks = RankedCost(measured, 2, ExchangeCost(gib=2.0, items=8.0, gib_s=4.0))
    assert ranks.seconds(2, 8) == pytest.approx(5.0)
    assert ranks.seconds(4, 8) == pytest.approx(measured.seconds(4, 8) + (3 / 4 - 1 / 2) * 2.0 / 4.0)


def test_ranks_of_which_it_is_not_known_what_they_exchange_are_no_more_than_were_measured():
    ranks = RankedCost(Profiled([Point(1, 8, 4.0, 3.0)]), 1)
    assert [ranks.seconds(devices, 8) for devices in (1, 4)] == [4.0, 4.0]
    assert ranks.memory_gib(4, 8) == 3.0
