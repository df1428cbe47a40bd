"""Every token of a rollout with deferral is trained at most once, ahead or with its group, and nothing is left out."""

from collections import Counter

import numpy as np
import pytest

from tests.helpers.steps import Tail, mechanisms_of, small_recipe, take_steps
from untail.backends.laws import reward_of, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import BridgeConfig
from untail.history.store import History
from untail.learn.bridge import Bridge, estimate_of
from untail.observe.accounts import step_accounts
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.types import Batch


@pytest.mark.parametrize("tokens", [16, 0])
def test_each_token_is_trained_once_and_the_accounts_sum(tokens):
    recipe, law, bridge = small_recipe("dynaseg"), Tail(seed=0), Bridge(BridgeConfig(tokens=tokens))
    trained: Counter[tuple[str, int]] = Counter()
    whole: dict[str, int] = {}  # tokens of every trajectory that was trained to its end
    ahead = 0

    async def score(trajectory):
        return Score(reward_of(law, trajectory))

    async def run():
        backend, history = SimBackend(law, SimConfig(slots=6)), History.open(None, "sim", "sim")
        mechanisms = mechanisms_of(recipe)
        controller = Controller(
            [backend], 6, sim_prompts(24, law), score, recipe.rollout, mechanisms, history, vocab=512, seed=0
        )

        async def update(step, groups):
            nonlocal ahead
            batch = Batch(step, groups, controller.underway())
            _, stretches = bridge.stretches(batch)
            for name, stretch in stretches.items():
                trained.update((name, t) for t in range(stretch.begin, stretch.end))
                ahead += bool(stretch.beyond)
            whole.update({t.id: len(t.tokens) for t in batch.trajectories})
            values = {n: np.zeros(len(s.trajectory.tokens) + 1) for n, s in stretches.items()}
            bridge.crossed(batch, stretches.values(), {n: estimate_of(s, values[n]) for n, s in stretches.items()}, 1.0)
            await backend.load_weights(None, step)

        try:
            return await take_steps(controller, range(1, 13), update)
        finally:
            await controller.close()
            await backend.close()
            history.close()

    steps = run_virtual(run())
    assert ahead > 10, "nothing was trained ahead: this says nothing"
    assert set(trained.values()) == {1}
    assert all((name, t) in trained for name, length in whole.items() for t in range(length))
    assert all(step_accounts(events)["unaccounted"] == 0 for events in steps.events)
