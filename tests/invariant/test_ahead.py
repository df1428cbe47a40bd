"""Rollouts that run ahead of updates: no token is trained that is staler than the bound, token by token, whatever the
lengths, the recipe, the bound and the speed of the learner; with a bound of 0 it is the synchronous run."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.steps import Steps, Tail, mechanisms_of, simulate_steps, small_recipe
from tests.invariant.test_staleness import check_bound, laws, recipe_of
from untail.backends.laws import reward_of, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.config import ConfigError
from untail.flow.ahead import Ahead
from untail.flow.channel import Channel
from untail.flow.given import Giver
from untail.flow.placement import lead_of, refuse_what_cannot_be, staleness_of
from untail.history.store import History
from untail.observe.accounts import step_accounts
from untail.rewards.scorer import Score
from untail.rollout.controller import Controller
from untail.types import Group

RECIPES = ("es-grpo-async", "es-grpo-async-pyramid", "laminar", "april", "untail", "grpo")


def run_ahead(recipe, law, steps, update_s, engines=2, slots=6, pool=24, seed=0) -> Steps:
    """As the training loop does it, in virtual time: the learner takes `update_s`, and engines get its weights while
    they run."""
    return run_virtual(_run_ahead(recipe, law, steps, update_s, engines, slots, pool, seed))


async def _run_ahead(recipe, law, steps, update_s, engines, slots, pool, seed) -> Steps:
    backends = [SimBackend(law, SimConfig(slots=slots)) for _ in range(engines)]

    async def score(trajectory):
        return Score(reward_of(law, trajectory))

    history = History.open(None, "sim", "sim")
    rollout = recipe.rollout.model_copy(update={"max_staleness": staleness_of(recipe)})
    mechanisms, prompts = mechanisms_of(recipe), sim_prompts(pool, law)
    controller = Controller(list(backends), slots, prompts, score, rollout, mechanisms, history, vocab=512, seed=seed)

    async def roll_out(step, channel, version):
        giver, given = Giver(channel), []
        give = lambda group: given.append(group.id) or giver.give(group)
        batch = await controller.roll_out(step, giver.emit, version, give)
        assert sorted(given) == sorted(group.id for group in batch), "what is handed on early is trained"
        giver.close()
        return True

    ahead, taken = Ahead(roll_out, lambda step: None, lead_of(recipe), steps), Steps()
    try:
        for step in range(1, steps + 1):
            channel = Channel()
            await ahead.give(step, channel)
            items = [item async for item in channel]
            await asyncio.sleep(update_s)
            for backend in backends:
                await backend.pause("keep")
                await backend.load_weights(None, step)
                await backend.resume()
            ahead.published(step)
            events = [event for item in items if not isinstance(item, Group) for event in item]
            now = backends[0].clock.now()
            taken.events.append([*events, *({"e": kind, "t": now, "step": step} for kind in ("update", "done"))])
            taken.batches.append([item for item in items if isinstance(item, Group)])
    finally:
        await ahead.close()
        await controller.close()
        for backend in backends:
            await backend.close()
        history.close()
    return taken


def asynchronous(name, bound, **rollout):
    recipe = recipe_of(name, **rollout)
    flow = recipe.flow.model_copy(update={"mode": "disaggregated", "schedule": "async", "staleness": bound})
    return recipe.model_copy(update={"flow": flow})


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(RECIPES),
    law=laws,
    bound=st.integers(0, 4),
    update_s=st.sampled_from([0.0, 0.3, 3.0, 60.0]),
    prompts=st.integers(1, 5),
    group=st.integers(3, 5),
    slots=st.integers(1, 9),
    engines=st.integers(1, 3),
)
def test_the_bound_holds_token_by_token(name, law, bound, update_s, prompts, group, slots, engines):
    recipe = asynchronous(name, bound, prompts=prompts, group=group, max_tokens=96)
    taken = run_ahead(recipe, law, 7, update_s, engines, slots, pool=12)
    check_bound(taken.batches, bound)
    assert {step_accounts(events)["unaccounted"] for events in taken.events} == {0}
    trained = [trajectory.id for batch in taken.batches for group in batch for trajectory in group.trajectories]
    assert len(set(trained)) == len(trained)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(RECIPES), law=laws, update_s=st.sampled_from([0.0, 3.0]))
def test_with_a_bound_of_0_it_is_the_synchronous_run(name, law, update_s):
    recipe = asynchronous(name, 0)
    synchronous = recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"max_staleness": 0})})
    ahead, in_turn = run_ahead(recipe, law, 5, update_s), simulate_steps(synchronous, law, 5)
    assert [_what(batch) for batch in ahead.batches] == [_what(batch) for batch in in_turn.batches]


def _what(batch):
    return {t.id: (t.tokens, t.version, t.reward) for group in batch for t in group.trajectories}


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_the_bound_is_reached(bound):
    """Otherwise the tests above would say nothing."""
    assert check_bound(run_ahead(asynchronous("es-grpo-async", bound), Tail(0), 14, 60.0).batches, bound) == bound


def test_rollouts_do_not_wait_for_the_learner_until_the_bound_says_so():
    """With a learner that takes as long as a rollout, two steps ahead save most of the time of one of them."""
    law = Tail(0)
    alone = run_ahead(asynchronous("grpo", 0), law, 8, 0.0)
    update_s = alone.events[-1][-1]["t"] / 8
    times = [run_ahead(asynchronous("grpo", bound), law, 8, update_s).events[-1][-1]["t"] for bound in (0, 4)]
    assert times[1] < 0.75 * times[0]


def test_what_contradicts_itself_is_refused():
    recipe = small_recipe("grpo")
    for changes, said in [
        ({"schedule": "async"}, 'flow.mode = "local" has one device set for both'),
        ({"schedule": "one-off", "mode": "collocated"}, 'flow.mode = "collocated" has one device set'),
        ({"staleness": 2}, 'flow.staleness = 2 is for flow.schedule = "async"'),
    ]:
        with pytest.raises(ConfigError, match=said):
            refuse_what_cannot_be(recipe.model_copy(update={"flow": recipe.flow.model_copy(update=changes)}))
    beside = recipe.flow.model_copy(update={"mode": "disaggregated", "schedule": "one-off"})
    with pytest.raises(ConfigError, match="depends on time"):
        refuse_what_cannot_be(recipe.model_copy(update={"flow": beside, "deterministic": True}))
    strict = recipe.rollout.model_copy(update={"max_staleness": 0})
    with pytest.raises(ConfigError, match=r"needs rollout.max_staleness >= 1, and it is 0"):
        refuse_what_cannot_be(recipe.model_copy(update={"flow": beside, "rollout": strict}))
