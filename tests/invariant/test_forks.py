"""A copy is its parent up to where it was made, and a sample of the policy at its own temperature from there on: on the
engine, by way of the controller."""

import pytest
import torch

from tests.helpers.native import native_controller, tiny
from tests.helpers.steps import Steps, small_recipe, take_steps
from tests.unit.learn.helpers import plain_logprobs
from untail.rollout import branching
from untail.types import Trajectory

TOURNAMENT = ("mechanisms.fixed={segments = 8}", "mechanisms.tournament={}", "mechanisms.fork={}")


async def run(*changes: str, steps: int = 2, **engine) -> Steps:
    """Steps of a recipe with a tournament at every boundary."""
    recipe = small_recipe(None, *TOURNAMENT, *changes, max_tokens=64, patience="segment", prompts=3, group=6)
    async with native_controller(recipe, max_seqs=18, **engine) as controller:
        (backend,) = controller.stage.fleet.backends

        async def update(step, batch):
            await backend.load_weights(None, step)

        taken = await take_steps(controller, range(1, steps + 1), update)
        await controller.close()
        backend.engine.check_integrity()
        assert not backend.engine.names(), "something was left behind"
        return taken


def pairs(taken: Steps) -> list[tuple[Trajectory, Trajectory]]:
    """Each copy, with its parent."""
    by_name = {t.id: t for _, t in taken.trained}
    return [(t, by_name[t.parent]) for t in by_name.values() if t.parent is not None]


async def test_with_its_parents_stream_and_temperature_it_repeats_the_parent(monkeypatch):
    """Token for token, as far as both go: its keys and values are the parent's."""
    original = branching.copy_of

    def copy_of(member, serial, **changes):
        return original(member, serial, **{**changes, "stream": member.trajectory.stream})

    monkeypatch.setattr(branching, "copy_of", copy_of)
    taken = await run("mechanisms.fork.warmer=0")
    compared = 0
    for child, parent in pairs(taken):
        both = min(len(child.tokens), len(parent.tokens))
        assert child.tokens[:both] == parent.tokens[:both]
        assert child.policy_logprob[:both] == pytest.approx(parent.policy_logprob[:both], abs=1e-4)
        assert child.behaviour_logprob == pytest.approx(child.policy_logprob, abs=1e-6)
        compared += both - child.forked_at
    assert compared > 50, "nothing was compared"


async def test_with_a_stream_of_its_own_it_goes_its_own_way():
    taken = await run()
    copies = pairs(taken)
    assert len(copies) > 10
    for child, parent in copies:
        columns = ("tokens", "policy_logprob", "behaviour_logprob", "entropy", "version")
        for column in columns:
            at = child.forked_at
            assert getattr(child, column)[:at] == getattr(parent, column)[:at], column
    assert sum(child.tokens[child.forked_at :] != parent.tokens[child.forked_at :] for child, parent in copies) > 5


async def test_its_tokens_have_the_log_probs_of_its_own_temperature():
    """`policy` is at the recipe's temperature for all; `behaviour` at the copy's, for what it wrote itself."""
    taken = await run(steps=1)
    copies = [t for _, t in taken.trained if t.parent is not None]
    assert {t.temperature for t in copies} >= {1.2, 1.4}
    assert max(t.temperature for t in copies) <= 1.5
    decoder, own = tiny().decoder, 0
    for t in copies:
        with torch.no_grad():
            policy = plain_logprobs(decoder, t, temperature=1.0).tolist()
            behaviour = plain_logprobs(decoder, t, temperature=t.temperature).tolist()
        at = t.forked_at
        assert t.policy_logprob == pytest.approx(policy, abs=1e-4)
        assert t.behaviour_logprob[at:] == pytest.approx(behaviour[at:], abs=1e-4)
        own += sum(abs(a - b) > 1e-3 for a, b in zip(policy[at:], behaviour[at:], strict=True))
    assert own > 10, "the two temperatures cannot be told apart"


async def test_features_are_the_engines_hidden_states():
    recipe = small_recipe(None, *TOURNAMENT, max_tokens=64, patience="segment", prompts=3, group=6)
    async with native_controller(recipe, max_seqs=18) as controller:
        tournament, widths = controller.stage.mechanisms.by_name["tournament"], []
        worst = tournament.worst

        def look(group, view):
            widths.extend(len(member.feature) for member in group.open)
            return worst(group, view)

        tournament.worst = look
        await controller.roll_out(1, lambda event: None)
    assert set(widths) == {tiny().decoder.shape.hidden}
