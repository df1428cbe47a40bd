"""6.5: short rounds that leave the slow behind, and now and then a long one for them."""

import json
import math
from itertools import islice

import pytest
from tests.helpers.rig import Rig, by
from tests.helpers.rollout import FakeView, make_group, make_plan, make_prompt, whole

from untail.errors import ConfigError
from untail.rollout.finish.tail_batch import TailBatch
from untail.rollout.points import MECHANISMS


def build(**fields) -> TailBatch:
    return MECHANISMS.build({"name": "tail_batch", **fields}, "mechanisms.tail_batch")


def leave(mechanism: TailBatch, *numbers: int) -> TailBatch:
    """A step ended without these prompts."""
    groups = [make_group(make_plan(make_prompt(number)), name=f"g{number}") for number in numbers]
    mechanism.after_step([], FakeView(groups=groups))
    return mechanism


def test_a_short_round_starts_more_prompts_with_more_samples():
    mechanism, view = build(), FakeView(wanted=8, group=8)
    assert mechanism.starts(view) == 10
    plan = mechanism.shape(make_plan(size=8), view)
    assert (plan.size, plan.keep) == (10, 8)
    assert mechanism.rank(view) is None  # in the order of the recipe
    assert mechanism.rest == "cancel"


def test_what_is_under_way_or_ready_counts():
    view = FakeView(wanted=8, groups=[make_group()], ready=[whole(make_prompt(), [1.0] * 8)])
    assert build().starts(view) == 8
    assert leave(build(), *range(8)).starts(view) == 6


def test_it_closes_at_a_batch_of_groups():
    ready = [whole(make_prompt(n), [1.0] * 8) for n in range(4)]
    assert build().closes_at(FakeView(wanted=4, now=3.0, ready=ready[:3])) == math.inf
    assert build().closes_at(FakeView(wanted=4, now=3.0, ready=ready)) == 3.0


def test_who_was_left_over_is_not_asked_in_a_short_round():
    mechanism, view = leave(build(), 3, 5), FakeView(wanted=4)
    assert mechanism.shape(make_plan(make_prompt(3)), view) is None
    assert mechanism.shape(make_plan(make_prompt(4)), view) is not None


def test_a_batch_of_left_over_prompts_makes_a_long_round():
    mechanism, view = leave(build(), 3, 5, 9, 11, 12), FakeView(wanted=4)
    assert mechanism.starts(view) == 4
    assert [prompt.tokens[0] for prompt in islice(mechanism.rank(view), 7)] == [3, 5, 9, 11, 12, 0, 1]
    plan = mechanism.shape(make_plan(make_prompt(3), size=8), view)
    assert (plan.size, plan.keep) == (8, 8)


def test_who_was_trained_is_left_over_no_longer():
    mechanism = leave(build(), 3, 5, 9, 11, 12)
    batch = [whole(make_prompt(number), [1.0] * 8) for number in (3, 5, 9, 11)]
    mechanism.after_step(batch, FakeView(wanted=4, groups=[]))
    assert mechanism.state() == {"left_over": [make_prompt(12).id]}
    assert mechanism.starts(FakeView(wanted=4)) == 5


def test_what_is_left_over_survives_a_checkpoint():
    fresh = build()
    fresh.restore(json.loads(json.dumps(leave(build(), 3, 5, 9, 11).state())))
    assert [prompt.tokens[0] for prompt in islice(fresh.rank(FakeView(wanted=4)), 4)] == [3, 5, 9, 11]


def test_a_prompt_that_is_no_longer_there_is_passed_over():
    view = FakeView(wanted=2, prompts=[make_prompt(n) for n in range(4)])
    assert [prompt.tokens[0] for prompt in islice(leave(build(), 3, 99).rank(view), 2)] == [3, 0]


def test_about_one_step_in_five_is_long_and_has_the_long_prompts():
    """Every fourth prompt is slow. A short step of 8 starts 10 and leaves 2, so that the fifth step is long."""
    scripts = by(lambda prompt, member: (50 if prompt % 4 == 0 else 3) + (prompt + member) % 3)
    steps = Rig(scripts, {"tail_batch": {}}, prompts=8, group=4, pool=200, slots=200).run(11)
    started = [len(step.groups("admit")) for step in steps]
    assert [step.number for step in steps if started[step.number - 1] == 8] == [5, 10]
    slow = lambda step: sum(int(number) % 4 == 0 for number in step.groups("train"))
    assert slow(steps[4]) > 2 * max(slow(step) for step in steps[:4])
    dropped = [number for step in steps[:4] for number in step.groups("drop")]
    assert sorted(steps[4].groups("train")) == sorted(dropped)
    # A short step keeps the first four of five; the long one starts four.
    assert {event["size"] for event in steps[0].all("admit")} == {5}
    assert {event["size"] for event in steps[4].all("admit")} == {4}
    assert all(len(group.trajectories) == 4 for step in steps for group in step.batch)


@pytest.mark.parametrize("name", ["prompts", "samples"])
def test_fewer_than_all_is_refused(name):
    with pytest.raises(ConfigError, match=rf"mechanisms.tail_batch.{name} = 0.9"):
        build(**{name: 0.9})
