"""The bandit finds the best arm of each context, loses little on the way, and follows when it changes."""

import json
from collections import Counter
from random import Random

import pytest

from untail.draft.choose.bandit import Bandit
from untail.draft.choose.base import OFF, Arm, Outcome, Scene

DRAFTERS = ["history", "adaptive"]


def bandit(seed=0, **fields) -> Bandit:
    return Bandit(Bandit.Config(**fields), DRAFTERS, seed)


def play(chooser, speeds, steps, batch=1, rng=None, noise=0.2) -> Counter[Arm]:
    """`speeds`: by arm, tokens per second of a sequence. Tokens come in bursts; a step's seconds follow."""
    rng, taken = rng or Random(1), Counter()
    for _ in range(steps):
        scene = Scene(batch, 100, 0.5)
        arm = chooser.choose(scene)
        emitted = batch * (1 if arm == OFF else rng.choice((1, 1, 1 + 2 * arm.depth)))
        speed = speeds.get(arm, speeds["others"]) * (1 + noise * (rng.random() - 0.5))
        seconds = emitted / (speed * batch)
        chooser.heard(scene, arm, Outcome(emitted, 0, 0, 0, 0.0, seconds))
        taken[arm] += 1
    return taken


@pytest.mark.parametrize("best", [OFF, Arm("history", 8), Arm("adaptive", 2)])
def test_the_best_arm_is_found(best):
    taken = play(bandit(), {best: 3.0, "others": 2.0}, 2000)
    assert taken[best] > 0.9 * 2000
    assert len(taken) == 7, "every arm was tried, off included"


def test_what_is_far_behind_is_seldom_tried():
    speeds = {OFF: 1.0, Arm("history", 2): 1.5, Arm("history", 4): 1.4, "others": 0.5}
    taken = play(bandit(explore=0.5, explore_last=0.5), speeds, 4000)
    assert taken[Arm("history", 4)] > 5 * taken[Arm("adaptive", 2)]


def test_a_hopeless_drafter_is_not_tried_deeper():
    taken = play(bandit(explore=0, explore_last=0), {OFF: 3.0, "others": 1.0}, 400)
    assert set(taken) == {OFF, Arm("history", 2), Arm("adaptive", 2)}


def test_one_that_gets_better_is_found_all_the_same():
    """An adaptive drafter before and after its training."""
    chooser = bandit()
    play(chooser, {OFF: 2.0, "others": 0.5}, 400)
    taken = play(chooser, {Arm("adaptive", 4): 4.0, Arm("adaptive", 2): 3.0, OFF: 2.0, "others": 0.5}, 20000)
    assert taken[Arm("adaptive", 4)] > 10000


def test_it_loses_less_than_a_twentieth():
    """Tokens in the same seconds, against always taking the best; exploration included."""
    speeds = {OFF: 1.0, Arm("history", 4): 1.6, Arm("history", 8): 1.5, "others": 0.8}
    chooser, rng = bandit(), Random(2)
    tokens = seconds = 0.0
    for _ in range(3000):
        scene = Scene(1, 100, 0.5)
        arm = chooser.choose(scene)
        took = 1 / speeds.get(arm, speeds["others"]) * (1 + 0.2 * (rng.random() - 0.5))
        chooser.heard(scene, arm, Outcome(1, 0, 0, 0, 0.0, took))
        tokens, seconds = tokens + 1, seconds + took
    assert tokens / seconds > 0.95 * 1.6


def test_it_follows_when_the_best_changes():
    chooser = bandit(window=20)
    play(chooser, {Arm("history", 4): 3.0, "others": 1.0}, 1000)
    taken = play(chooser, {Arm("adaptive", 4): 3.0, "others": 1.0}, 4000)
    assert taken[Arm("adaptive", 4)] > 2000


def test_a_hold_up_while_an_arm_is_tried_does_not_cost_it_its_place():
    """What is compiled at its first use, say."""
    best = Arm("history", 8)
    chooser, seen, taken = bandit(explore=0, explore_last=0), {OFF}, Counter()
    for _ in range(400):
        scene = Scene(1, 100, 0.5)
        arm = chooser.choose(scene)
        held_up = 0.0 if arm in seen else 1.0
        seen |= {arm}
        taken[arm] += 1
        chooser.heard(scene, arm, Outcome(3 if arm == best else 1, 0, 0, 0, 0.0, 0.01 + held_up))
    assert taken[best] > 300


def test_a_few_unlucky_pulls_do_not_outweigh_what_contexts_like_it_know():
    good, other = Arm("history", 2), Arm("adaptive", 2)
    like, here = [1, 0, 2], [1, 0, 1]

    def pulls(tokens: float, times: int) -> list[list[float]]:
        return [[0, 8, 8 * tokens, 8 * tokens**2, 8.0]] * times

    def chosen(here_good: list[list[float]]) -> Arm:
        chooser = bandit(depths=(2,), explore=0, explore_last=0)
        arms = [(like, good, pulls(3, 20)), (like, other, pulls(1, 20)), (like, OFF, pulls(1, 20))]
        arms += [(here, good, here_good), (here, other, pulls(2, 20)), (here, OFF, pulls(1, 2))]
        chooser.restore({"rewards": [[context, list(arm), kept] for context, arm, kept in arms], "pulls": []})
        return chooser.choose(Scene(1, 100, 0.2))

    assert chosen(pulls(1, 2)) == good
    assert chosen(pulls(1, 200)) == other, "what it saw itself counts more in the end"


def test_who_differs_from_step_to_step_gets_the_benefit_of_the_doubt():
    """Half of its steps have one token and half three, and are twice as long as those without drafts and a bit."""
    drafts = Arm("history", 2)

    def chosen(times: int) -> Arm:
        chooser = Bandit(Bandit.Config(depths=(2,), explore=0, explore_last=0), ["history"], seed=0)
        unsteady, steady = [0, 8, 16.0, 40.0, 16.8], [0, 8, 8.0, 8.0, 8.0]
        known = [[[1, 0, 1], list(drafts), [unsteady] * times], [[1, 0, 1], list(OFF), [steady] * times]]
        chooser.restore({"rewards": known, "pulls": []})
        return chooser.choose(Scene(1, 100, 0.2))

    assert chosen(2) == drafts
    assert chosen(100) == OFF


def test_batch_sizes_have_arms_of_their_own():
    chooser = bandit()
    for _ in range(20):
        play(chooser, {Arm("history", 8): 3.0, "others": 1.0}, 60, batch=1)
        play(chooser, {OFF: 3.0, "others": 1.0}, 60, batch=16)
    assert play(chooser, {Arm("history", 8): 3.0, "others": 1.0}, 200, batch=1)[Arm("history", 8)] > 150
    assert play(chooser, {OFF: 3.0, "others": 1.0}, 200, batch=16)[OFF] > 150


def test_a_batch_that_changes_every_step_still_teaches():
    """Pulls that are cut short count."""
    chooser = bandit()
    taken = Counter()
    for step in range(1200):
        batch = 1 + 3 * (step % 2)
        taken += play(chooser, {OFF: 3.0, "others": 1.0}, 1, batch=batch)
    assert taken[OFF] > 900


def test_a_new_context_of_the_same_batch_size_tries_nothing_again():
    chooser = bandit()
    play(chooser, {Arm("history", 8): 3.0, "others": 1.0}, 600)
    taken = Counter(chooser.choose(Scene(1, 5000, 0.9)) for _ in range(16))
    assert taken[Arm("history", 8)] >= 8


def test_arms_that_are_too_wide_are_not_offered():
    chooser = bandit(max_verify=40)
    taken = play(chooser, {"others": 1.0}, 500, batch=10)
    assert {arm.depth for arm in taken} == {0, 2}
    assert set(play(bandit(max_verify=8), {"others": 1.0}, 100, batch=10)) == {OFF}


def test_what_it_knows_survives_a_checkpoint():
    chooser = bandit()
    play(chooser, {Arm("history", 8): 3.0, "others": 1.0}, 600)
    other = bandit(seed=5)
    other.restore(json.loads(json.dumps(chooser.state())))
    taken = play(other, {Arm("history", 8): 3.0, "others": 1.0}, 100)
    assert taken[Arm("history", 8)] > 80


def test_a_drafter_that_is_gone_since_is_forgotten():
    chooser = bandit()
    play(chooser, {Arm("history", 8): 3.0, "others": 1.0}, 300)
    other = Bandit(Bandit.Config(), ["adaptive"], 0)
    other.restore(chooser.state())
    assert all(arm.drafter in (None, "adaptive") for arm in play(other, {"others": 1.0}, 300))


def test_nobody_drafts_for_many_before_it_paid_for_half_as_many():
    chooser = bandit(max_verify=1000)
    assert set(play(chooser, {"others": 1.0}, 100, batch=16)) == {OFF}
    play(chooser, {OFF: 1.0, "others": 2.0}, 200, batch=8)
    assert len(play(chooser, {OFF: 1.0, "others": 2.0}, 200, batch=16)) > 1
    play(chooser, {OFF: 2.0, Arm("history", 2): 1.5, "others": 1.5}, 400, batch=32)
    assert set(play(chooser, {"others": 1.0}, 100, batch=64)) == {OFF}, "it did not pay for 32"
