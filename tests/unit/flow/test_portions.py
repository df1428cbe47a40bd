"""Portions on their way to the learner, and which recipes may have them."""

import asyncio
import gc
from types import SimpleNamespace

import pytest
from tests.helpers.flowing import small
from tests.helpers.here import Here
from tests.helpers.rollout import make_prompt, whole

from untail.config import ConfigError
from untail.flow import portions
from untail.flow.failures import WorkerFailed
from untail.flow.placement import refuse_what_cannot_be
from untail.flow.portions import Portions
from untail.flow.switch import Turns
from untail.flow.worker import Worker
from untail.types import Batch


class Diary(Worker):
    def __init__(self):
        self.seen = []

    def learn(self, portion: Batch) -> float:
        if any(group.id == "bad" for group in portion.groups):
            raise ValueError("a portion that cannot be learned from")
        self.seen.append((portion.step, [group.id for group in portion.groups]))
        return 0.25

    def read(self):
        return self.seen


@pytest.fixture
def learner():
    with Here(devices=1) as cluster:
        group = cluster.group(Diary, devices=[[0]], name="learner")
        group.portions = Portions(Turns(cluster), group, batch=6)
        yield group


@pytest.fixture
def clock(monkeypatch):
    """What the portions read: seconds, one after the other."""
    seconds: list[float] = []
    monkeypatch.setattr(portions, "time", SimpleNamespace(perf_counter=lambda: seconds.pop(0)))
    return seconds


def groups(*names: str):
    return [whole(make_prompt(), [1.0, 0.0], name=name) for name in names]


def ids(batch: Batch) -> list[str]:
    return [group.id for group in batch.groups]


async def seen(learner):
    return (await learner.read())[0]


async def test_a_portion_goes_when_it_is_full_and_the_rest_is_what_is_left(learner):
    batch = Batch(1, groups(*"abcde"))
    for group in reversed(batch.groups):
        learner.portions.take(1, group, size=2)
    figures = await learner.portions.arrive()
    assert await seen(learner) == [(1, ["d", "e"]), (1, ["b", "c"])], "in their order within, as they came between"
    assert figures["portions"] == 2
    assert ids(learner.portions.rest_of(batch)) == ["a"]


async def test_of_the_learners_seconds_those_before_the_batch_was_whole_are_early(learner, clock):
    first, second = groups("a", "b")
    clock += [10.0, 10.125, 10.25, 10.5]  # both come, and then both are learned, a quarter of a second each
    learner.portions.take(1, first, size=1)
    learner.portions.take(1, second, size=1)
    assert await learner.portions.arrive() == {"portions": 2, "early_s": 0.125}


async def test_a_portion_that_was_over_when_the_last_group_came_was_early(learner, clock):
    first, second = groups("a", "b")
    clock += [10.0, 10.25]
    learner.portions.take(1, first, size=1)
    assert await learner.portions.arrive() == {"portions": 1, "early_s": 0.0}, "nothing else came"
    clock += [20.0, 20.25]
    learner.portions.take(1, second, size=1)
    assert await learner.portions.arrive() == {"portions": 2, "early_s": 0.25}


async def test_a_whole_batch_is_no_portion(learner):
    batch = Batch(1, groups(*"abcdefg"))
    for group in batch.groups:
        learner.portions.take(1, group, size=6)
    assert await learner.portions.arrive() == {}
    assert learner.portions.rest_of(batch) == batch
    assert await seen(learner) == []


async def test_what_a_lost_learner_had_is_in_the_rest_again(learner):
    batch = Batch(1, groups(*"abc"))
    for group in batch.groups:
        learner.portions.take(1, group, size=1)
    learner.portions.forget()
    assert await learner.portions.arrive() == {}
    assert ids(learner.portions.rest_of(batch)) == ["a", "b", "c"]


async def test_another_step_begins_with_nothing(learner):
    (left,) = groups("left")
    learner.portions.take(1, left, size=2)
    batch = Batch(2, groups("b", "c"))
    for group in batch.groups:
        learner.portions.take(2, group, size=2)
    await learner.portions.arrive()
    assert await seen(learner) == [(2, ["b", "c"])]


async def test_a_plan_may_have_portions_in_one_step_and_none_in_the_next(learner):
    (first,) = groups("a")
    learner.portions.take(1, first, size=1)
    assert (await learner.portions.arrive())["portions"] == 1
    batch = Batch(2, groups("b", "c"))
    for group in batch.groups:
        learner.portions.take(2, group, size=6)
    assert await learner.portions.arrive() == {}
    assert learner.portions.rest_of(batch) == batch


async def test_a_portion_that_fails_says_so_when_it_is_waited_for_and_only_then(learner):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: complaints.append(about["message"]))
    for group in groups("good", "bad", "bad"):
        learner.portions.take(1, group, size=1)
    with pytest.raises(WorkerFailed, match="a portion that cannot be learned from"):
        await learner.portions.arrive()
    await learner.portions.close()
    gc.collect()
    assert complaints == []


SIDE_BY_SIDE = {"flow__mode": "disaggregated", "flow__portion": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"flow__portion": 5}, r"flow.portion = 5, but a step has rollout.prompts = 4 groups; ask for 4 or fewer"),
        ({"flow__mode": "local"}, r'flow.portion = 2 .* flow.mode = "local" it has no device of its own'),
        ({"flow__mode": "collocated"}, r'flow.mode = "collocated" it has no device of its own .* "disaggregated"'),
        ({"flow__mode": "hybrid"}, r'flow.mode = "hybrid" it has no device of its own'),
        ({"flow__mode": "auto"}, r'flow.portion = 2 is for the plan to choose with flow.mode = "auto"'),
        ({"flow__mode": "auto", "flow__portion": 4}, r"flow.portion = 4 is for the plan to choose"),
        ({"learn__updates": 2}, r"flow.portion = 2 .* learn.updates = 2 deals the whole batch out"),
        ({"learn__advantage": "ppo"}, r"learn.advantage = 'ppo' trains its critic on the whole batch first"),
        ({"learn__prune": {}}, r"learn.prune.share = 0.4 is of all tokens of a batch"),
    ],
    ids=str,
)
def test_what_cannot_have_portions_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        refuse_what_cannot_be(small(**{**SIDE_BY_SIDE, **changes}))


@pytest.mark.parametrize(
    "changes", [{}, {"flow__schedule": "async"}, {"flow__portion": 3}, {"flow__learner_devices": 2}]
)
def test_what_can_have_portions(changes):
    refuse_what_cannot_be(small(**{**SIDE_BY_SIDE, **changes}))


def test_the_whole_batch_is_for_everybody():
    refuse_what_cannot_be(small(flow__portion=4, learn__updates=2))
