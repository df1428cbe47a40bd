"""Modes and schedules in virtual time: what overlaps, what stands still, and how stale tokens get."""

import pytest

from untail.backends.laws import make_law
from untail.backends.sim import SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import Recipe, load_recipe
from untail.resolve import resolved
from untail.simulate.run import Played, play, simulate
from untail.simulate.scene import Scene

SMALL = ["rollout.prompts=6", "rollout.group=4", "rollout.max_tokens=1000", "rollout.watch_every=1024"]


def recipe(name: str = "grpo", *changes: str) -> Recipe:
    return resolved(load_recipe(name, {}, [*SMALL, *changes]))


def scene(**fields) -> Scene:
    engine = SimConfig(slots=12)
    return Scene(**{"devices": 4, "law": "short", "steps": 4, "warmup": 2, "engine": engine, **fields})


def played(name: str = "grpo", *changes: str, **fields) -> Played:
    made = scene(**fields)
    return run_virtual(play(recipe(name, *changes), made, make_law(made.law, made.seed)))


def test_who_takes_turns_pays_for_both():
    """A step is the rollout, the update, and handing over."""
    alone, whole = played(), played(update_s=100.0, handover_s=7.0)
    for before, after in zip(alone.rows, whole.rows, strict=True):
        assert after["rollout_s"] == pytest.approx(before["rollout_s"])
    steps = len(alone.rows)
    assert whole.done[-1] == pytest.approx(alone.done[-1] + 100.0 * steps + 7.0 * (steps - 1))


def test_one_off_hides_the_shorter_of_the_two():
    apart = {"mode": "disaggregated", "learners": 1, "update_s": 0.5}
    sync, one_off = (
        simulate("grpo", recipe(), scene(**apart)),
        simulate("grpo", recipe(), scene(**apart, schedule="one-off")),
    )
    assert one_off["step_s"] == pytest.approx(sync["step_s"] - 0.5, rel=0.01)
    assert sync["staleness_max"] == 0
    assert one_off["staleness_max"] == 1


def test_one_off_takes_as_long_as_the_learner_if_that_is_slower():
    slow = simulate("grpo", recipe(), scene(mode="disaggregated", schedule="one-off", update_s=500.0))
    assert slow["step_s"] == pytest.approx(500.0)
    assert slow["learner_busy"] > 0.9


def test_async_with_bound_0_is_sync():
    for name in ("grpo", "es-grpo"):
        apart = {"mode": "disaggregated", "update_s": 20.0}
        sync = played(name, "rollout.max_staleness=0", **apart)
        bounded = played(name, **apart, schedule="async", staleness=0)
        assert bounded.done == sync.done
        assert all(row["staleness"]["max"] == 0 for row in bounded.rows)


@pytest.mark.parametrize("mode", ["disaggregated", "hybrid"])
@pytest.mark.parametrize("bound", [1, 2, 3])
@pytest.mark.parametrize("name", ["grpo", "es-grpo", "april", "ulorl"])
def test_no_token_is_older_than_the_bound(name, bound, mode):
    found = played(name, mode=mode, schedule="async", staleness=bound, update_s=15.0, seed=bound, steps=6)
    assert max(row["staleness"]["max"] for row in found.rows) <= bound


def test_async_runs_ahead_as_far_as_it_may():
    found = played(mode="disaggregated", schedule="async", staleness=3, update_s=500.0, steps=6)
    assert max(row["staleness"]["max"] for row in found.rows) == 3


def test_new_weights_reach_a_rollout_that_is_under_way():
    """With a recipe that keeps every engine busy, some response has tokens of two versions."""
    found = played("es-grpo", mode="disaggregated", schedule="async", staleness=2, update_s=1.0, steps=6)
    assert any(row["staleness"]["mean"] > 0 for row in found.rows)


def test_devices_that_the_learner_borrows_stand_still():
    """The update of a step is under way while the next is rolled out: three engines of four go on."""
    free = simulate("grpo", recipe(), scene(mode="hybrid", learners=1, schedule="one-off", update_s=0.0))
    lent = simulate("grpo", recipe(), scene(mode="hybrid", learners=1, schedule="one-off", update_s=4.0))
    assert free["step_s"] < lent["step_s"] < free["step_s"] + 4.0 + 1e-6


def test_the_update_takes_its_tokens_and_devices():
    sync = {"mode": "disaggregated", "learners": 1}
    without, learned = played(**sync), played(**sync, learn_tok_s=1000.0)
    tokens = [row["len_mean"] * row["trajectories"] + 256 * row["trajectories"] for row in without.rows]
    assert learned.learner_s == pytest.approx(sum(tokens) / 1000.0, rel=0.01)
