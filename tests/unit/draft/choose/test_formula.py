"""The formula takes the depth that is fastest, or off, and learns what it needs for that from a few steps."""

import json
from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest

from untail.draft.choose.base import OFF, Arm, Outcome, Scene
from untail.draft.choose.formula import Formula, accepted_of


@dataclass(frozen=True)
class World:
    """A step takes `base` seconds and `slope` for each token that it verifies; a draft is right with its drafter's
    chance if those before it were, and costs `draft_s`."""

    acceptance: dict[str, float]
    base: float = 1.0
    slope: float = 0.0
    draft_s: float = 0.0

    def speed(self, batch: int, arm: Arm) -> float:
        tokens = batch * (1 + (accepted_of(self.acceptance[arm.drafter], arm.depth) if arm.drafter else 0))
        return tokens / (self.base + self.slope * batch * (1 + arm.depth) + self.draft_s * arm.depth)

    def best(self, batch: int) -> float:
        arms = [OFF, *(Arm(name, depth) for name in self.acceptance for depth in range(1, 9))]
        return max(self.speed(batch, arm) for arm in arms)


def play(chooser: Formula, world: World, steps: int, batch: int = 1) -> Counter[Arm]:
    rng, taken = Random(1), Counter()
    for _ in range(steps):
        scene = Scene(batch, 100, None)
        arm = chooser.choose(scene)
        accepted = (
            sum(_right(rng, world.acceptance[arm.drafter], arm.depth) for _ in range(batch)) if arm.drafter else 0
        )
        drafted, drafting = batch * arm.depth, world.draft_s * arm.depth
        seconds = drafting + world.base + world.slope * (batch + drafted)
        carried = batch if drafted else 0
        chooser.heard(scene, arm, Outcome(batch + accepted, carried, drafted, accepted, drafting, seconds))
        taken[arm] += 1
    return taken


def _right(rng: Random, acceptance: float, depth: int) -> int:
    return next((number for number in range(depth) if rng.random() >= acceptance), depth)


def formula(*drafters: str, **fields: int) -> Formula:
    return Formula(Formula.Config(**fields), list(drafters), 0)


WORLDS = [
    (World({"good": 0.9}), 1),
    (World({"good": 0.9, "bad": 0.2}, slope=0.05), 4),
    (World({"fair": 0.6}, slope=0.3), 8),
    (World({"fair": 0.6}, slope=0.1, draft_s=0.3), 1),
    (World({"bad": 0.1}, draft_s=0.5), 1),
]


@pytest.mark.parametrize(("world", "batch"), WORLDS)
def test_its_depth_is_nearly_the_fastest(world, batch):
    chooser = formula(*world.acceptance)
    play(chooser, world, 200, batch)
    taken = play(chooser, world, 200, batch)
    mean_s = sum(count / world.speed(batch, arm) for arm, count in taken.items()) / 200
    assert mean_s < 1.05 / world.best(batch)


def test_off_where_drafts_cost_more_than_they_give():
    taken = play(formula("bad"), World({"bad": 0.1}, slope=1.0), 400, batch=32)
    assert taken[OFF] > 380


def test_the_better_drafter_is_taken():
    taken = play(formula("bad", "good"), World({"bad": 0.2, "good": 0.9}, slope=0.1), 400)
    assert sum(count for arm, count in taken.items() if arm.drafter == "good") > 350


def test_a_drafter_that_became_better_is_tried_again():
    chooser = formula("late")
    play(chooser, World({"late": 0.05}, slope=0.2), 300)
    taken = play(chooser, World({"late": 0.95}, slope=0.2), 3000)
    assert taken[OFF] < 1500


def test_what_is_too_wide_is_not_offered():
    assert {arm.depth for arm in play(formula("good", max_verify=24), World({"good": 0.95}), 100, batch=8)} <= {0, 1, 2}
    assert set(play(formula("good", max_verify=8), World({"good": 0.95}), 20, batch=8)) == {OFF}


def test_what_it_knows_survives_a_checkpoint():
    chooser, world = formula("bad", "good"), World({"bad": 0.2, "good": 0.9}, slope=0.1)
    play(chooser, world, 300)
    other = formula("good", "new")
    other.restore(json.loads(json.dumps(chooser.state())))
    assert other.choose(Scene(1, 100, None)) == Arm("new", 2), "what it does not know is tried; all else is known"
    known = formula("good")
    known.restore(json.loads(json.dumps(chooser.state())))
    assert known.choose(Scene(1, 100, None)).drafter == "good"


def test_short_guesses_for_many_are_not_taken_for_long_ones_for_few():
    """One draft for each of eight, half of them right: the acceptance is a half."""
    chooser = formula("short")
    for _ in range(200):
        chooser.heard(Scene(8, 100, None), Arm("short", 4), Outcome(12, 8, 8, 4, 0.0, 1.0))
    assert chooser._forms["short"].acceptance == pytest.approx(0.5, abs=0.01)
    assert chooser._forms["short"].share == pytest.approx(1.0)


def test_one_slow_step_changes_nothing():
    chooser, world = formula("good"), World({"good": 0.9})
    play(chooser, world, 100)
    before, scene = chooser.choose(Scene(1, 100, None)), Scene(1, 100, None)
    chooser.heard(scene, OFF, Outcome(1, 0, 0, 0, 0.0, 100.0))
    chooser.heard(scene, before, Outcome(1, 1, before.depth, before.depth, 0.0, 100.0))
    assert chooser.choose(scene) == before
