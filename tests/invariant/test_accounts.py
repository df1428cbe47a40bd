"""Every token that is generated is accounted for, in every recipe, to the token."""

from contextlib import aclosing

import pytest

from tests.helpers.native import native_controller
from tests.helpers.steps import Steps, Tail, simulate_steps, small_recipe, take_steps
from tests.helpers.tiny import talks
from untail.backends.sim import SimBackend
from untail.config import recipe_names
from untail.observe.accounts import CAME, WENT, run_accounts
from untail.rollout.points import Mechanism, Verdict, Watch
from untail.types import stream_key

AUDITS = {"audit": 0.3, "max_false_kills": 1.0}  # many of them, and no reason switches itself off
# Those that do something with their tokens that the others do not.
PRUNE = ("adaseg", "dyg-seg", "dygs", "es-grpo")
FORK = ("adaseg", "dyg-seg", "dygs")
DEFER = ("april", "es-grpo", "ulorl", "untail")
CANCEL = ("deadline", "oversample", "rollpacker")
STOP = ("adaptive-flow", "breaker")
STRESSED = ("adaseg", "dapo", "dygs", "es-grpo", "oversample", "rollpacker", "ulorl", "untail")


class Doubter(Mechanism, Watch):
    """Stops every third, by each rule in turn."""

    def look(self, member, view):
        number = stream_key(0, member.id) % 12
        rules = ("penalty", "group_min", "zero", "mask")
        return Verdict("stop", "doubt", rules[number // 3]) if number % 3 == 0 else None


def check(taken: Steps, all_arrives: bool = True) -> dict[str, int]:
    """`all_arrives`: the engines lose no token on the way. What became of all tokens together comes back."""
    carried = 0
    for number, (books, sampled) in enumerate(zip(taken.accounts, taken.sampled, strict=True), 1):
        assert sum(books[name] for name in CAME) == sum(books[name] for name in WENT), f"step {number}: {books}"
        assert books["unaccounted"] == 0
        assert books["carried_in"] == carried, f"step {number} does not begin with what the last one left"
        assert all(tokens >= 0 for tokens in books.values()), f"step {number}: {books}"
        if all_arrives:
            assert books["generated"] == sampled, f"step {number}: the engines sampled {sampled}"
        carried = books["carried_out"]
    columns_are_whole(taken)
    return run_accounts(taken.accounts)


def columns_are_whole(taken: Steps) -> None:
    for _, t in taken.trained:
        columns = (t.policy_logprob, t.behaviour_logprob, t.entropy, t.p_eos, t.version, t.from_model, t.mixed_kv)
        assert {len(column) for column in columns} == {len(t.tokens)}
        assert t.version == sorted(t.version)
        ends = [segment.end for segment in t.segments]
        assert [segment.begin for segment in t.segments] == [0, *ends[:-1]]
        assert ends[-1] == len(t.tokens)


@pytest.mark.parametrize("name", recipe_names())
def test_twenty_steps_on_simulated_engines(name):
    taken = simulate_steps(small_recipe(name, **AUDITS), Tail(0))
    books = check(taken)
    if name in ("grpo", "quickstart"):
        assert books["trained"] == books["generated"]
    expected = {"cancelled": CANCEL, "stopped": STOP, "audited": (*CANCEL, *STOP), "dropped": (*CANCEL, "dapo")}
    for fate, names in expected.items():
        assert name not in names or books[fate] > 0, fate
    assert name not in DEFER or len(taken.all("defer")) > 0
    assert name != "adaseg" or len(taken.all("fork")) > 0


@pytest.mark.parametrize("name", recipe_names())
def test_twenty_steps_with_a_watcher_that_stops_many(name):
    taken = simulate_steps(small_recipe(name, **AUDITS), Tail(1), extra=[Doubter(None)], seed=1)
    books = check(taken)
    for fate in ("trained", "masked", "stopped", "audited"):
        assert books[fate] > 0, fate
    assert name not in CANCEL or books["cancelled"] > 0
    assert name not in FORK or len(taken.all("fork")) > 0


@pytest.mark.parametrize("name", STRESSED)
def test_without_room_for_all(name):
    """Sequences are preempted all the time, and what is deferred must not stay so for long."""
    recipe = small_recipe(name, **AUDITS, max_staleness=1)
    taken = simulate_steps(recipe, Tail(2), 10, [Doubter(None)], engines=1, slots=5, kv_tokens=1400)
    check(taken)
    assert sum(event["preemptions"] for event in taken.all("rolled_out")) > 0


class Unreliable(SimBackend):
    """One sequence in ten fails after its first chunk."""

    async def generate(self, spec):
        async with aclosing(super().generate(spec)) as chunks:
            async for chunk in chunks:
                yield chunk
                if stream_key(3, spec.id) % 10 == 0:
                    raise MemoryError("no room")


@pytest.mark.parametrize("name", STRESSED)
def test_on_engines_that_fail(name):
    recipe = small_recipe(name, **AUDITS)
    taken = simulate_steps(recipe, Tail(3), 10, [Doubter(None)], make_backend=Unreliable)
    assert check(taken, all_arrives=False)["failed"] > 0
    assert all(len(group.trajectories) >= 2 for batch in taken.batches for group in batch)


# Mechanisms that no recipe has together, but a user may.
BY_HAND = {
    "segments that are cancelled": ("unfinished", "compaction", "router", "oversample"),
    "segments up to a deadline": ("remainder", "compaction", "deadline"),
    "a tail batch of segments": ("pyramid", "tail_batch"),
    "segments over engines that run dry": ("fixed", "compaction", "defer", "repack"),
    "groups of their own sizes": ("group_size", "dynamic", "defer", "compaction"),
    "copies that are deferred": ("fixed", "tournament", "fork", "defer"),
    "copies that are cancelled": ("fixed", "tournament", "fork", "oversample", "compaction"),
    "copies over engines that run dry": ("fixed", "tournament", "fork", "compaction", "defer", "repack"),
    "copies up to a deadline": ("fixed", "mode_collapse", "duplicates", "outliers", "fork", "deadline"),
}


@pytest.mark.parametrize("case", BY_HAND)
@pytest.mark.parametrize("backend", [SimBackend, Unreliable])
def test_recipes_put_together_by_hand(case, backend):
    changes = [f"mechanisms.{name}={{}}" for name in BY_HAND[case]]
    recipe = small_recipe(None, *changes, audit=1.0, max_false_kills=1.0, group=4, max_staleness=1)
    taken = simulate_steps(recipe, Tail(4), 8, [Doubter(None)], slots=3, make_backend=backend)
    assert check(taken, all_arrives=backend is SimBackend)["audited"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_a_round_in_which_nobody_ends_and_one_fails_goes_on(seed):
    recipe = small_recipe("ulorl", prompts=2, group=2, watch_every=64)
    law = Tail(seed, median=60.0, p99=400.0, prompt_share=1.0)
    check(simulate_steps(recipe, law, 6, engines=1, seed=seed, make_backend=Unreliable), all_arrives=False)


def slow_tool(turn) -> float:
    """Seconds, with a tail: a simulated step takes about one."""
    return 0.02 * (turn.stream % 101) ** 2 / 100


TURNS = {"turns": 3, "time_limit_s": 1.5}


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("room", [2_000_000, 1400])
def test_with_an_environment(name, room):
    """Replies are nobody's tokens: the books are those of what the model wrote."""
    tool = talks(lambda turn: "again" if turn.stream % 4 else None, latency=slow_tool, **TURNS)
    recipe = small_recipe(name, **AUDITS, max_staleness=2)
    taken = simulate_steps(recipe, Tail(5), 10, [Doubter(None)], environment=tool, kv_tokens=room)
    books = check(taken)
    assert books["trained"] > 0
    assert max(trajectory.turns for _, trajectory in taken.trained) == 3
    assert {end["tool_failure"] for end in taken.all("end")} >= {None, "timeout"}
    for _, trajectory in taken.trained:
        assert trajectory.length == sum(trajectory.from_model) == len(trajectory.tokens) - trajectory.reply_tokens


@pytest.mark.parametrize("name", ["grpo", "oversample", "april", "untail"])
async def test_with_an_environment_on_the_engine(name):
    tool = talks(lambda turn: "again" if turn.stream % 4 else None, latency=lambda t: 0.02 * (t.stream % 20), turns=3)
    recipe = small_recipe(name, **AUDITS, prompts=3, max_tokens=96, patience=4, watch_every=4)
    async with native_controller(recipe, [Doubter(None)], deterministic=True, environment=tool) as controller:
        (backend,) = controller.stage.fleet.backends

        async def update(step, batch):
            await backend.load_weights(None, step)

        taken = await take_steps(controller, range(1, 4), update)
        backend.engine.check_integrity()
    check(taken)
    assert len(taken.all("reply")) > 0


@pytest.mark.parametrize("name", recipe_names())
async def test_three_steps_on_the_engine(name):
    recipe = small_recipe(name, **AUDITS, prompts=3, max_tokens=48, patience=4, watch_every=4)
    async with native_controller(recipe, [Doubter(None)]) as controller:
        (backend,) = controller.stage.fleet.backends

        async def update(step, batch):
            await backend.load_weights(None, step)

        taken = await take_steps(controller, range(1, 4), update)
    books = check(taken)
    assert books["stopped"] > 0
    assert name not in ("oversample", "rollpacker") or len(taken.all("cancel")) > 0
    assert name not in DEFER or len(taken.all("defer")) > 0
