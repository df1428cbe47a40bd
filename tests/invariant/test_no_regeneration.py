"""Nothing that was generated is generated again: what is demoted, extended, deferred, compacted or moved keeps its
tokens and, as far as the pool has room, its keys and values. The engine's own counts are the witness."""

from collections import defaultdict

import pytest

from tests.helpers.native import arithmetic, native_controller
from tests.helpers.steps import Steps, small_recipe, take_steps
from untail.engine.scheduler import Counts
from untail.history.stats import Record
from untail.history.store import History
from untail.rollout.controller import Controller
from untail.rollout.live import State
from untail.rollout.points import Mechanism, Move, Place, Verdict, Watch
from untail.types import stream_key

STEPS = range(1, 4)
SMALL = {"max_tokens": 64, "watch_every": 8, "patience": 8, "audit": 0.5, "max_false_kills": 1.0}


class Doubter(Mechanism, Watch):
    def look(self, member, view):
        return Verdict("stop", "doubt") if stream_key(0, member.id) % 6 == 0 else None


def engines_of(controller: Controller):
    return [backend.engine for backend in controller.stage.fleet.backends]


async def run(controller: Controller, steps=STEPS) -> Steps:
    async def update(step, batch):
        for backend in controller.stage.fleet.backends:
            await backend.load_weights(None, step)

    return await take_steps(controller, steps, update)


def lengths(taken: Steps) -> dict[str, int]:
    """Response tokens that the engine made for each trajectory, whatever became of them."""
    longest, overrun, shared = defaultdict(int), defaultdict(int), defaultdict(int)
    for events in taken.events:
        for event in events:
            if event["e"] == "fork":
                shared[event["id"]] = event["tokens"]
            if "id" in event:
                longest[event["id"]] = max(longest[event["id"]], event.get("tokens", 0))
                overrun[event["id"]] += event.get("overrun", 0)
    return {name: tokens - shared[name] + overrun[name] for name, tokens in longest.items()}


def assert_nothing_twice(taken: Steps, counts: list[Counts]) -> None:
    assert not taken.all("fail")
    made = lengths(taken)
    assert sum(count.sampled for count in counts) == sum(made.values()) == sum(taken.sampled)
    prompt_of = {prompt.id: len(prompt.tokens) for prompt in arithmetic()}
    prompts = {event["id"]: prompt_of[event["prompt"]] for event in taken.all("start")}
    copies = {event["id"] for event in taken.all("fork")}
    stays = defaultdict(list)  # tokens at the end of each stay on an engine
    for event in taken.all("move"):
        stays[event["id"]].append(event["tokens"])
    # Of each stay in which it wrote something, all but the last token is computed there once.
    once = 0
    for name, tokens in made.items():
        if name in copies:  # its first step computes the last token of what it shares, which nobody had yet
            once += tokens
            continue
        ends = sorted({*stays[name], tokens} - {0})
        once += sum(prompts[name] + end - 1 for end in ends)
    again = sum(count.recomputed_after_eviction + count.recomputed_after_update for count in counts)
    from_cache = sum(count.prefix_hits for count in counts)
    assert sum(count.computed for count in counts) + from_cache == once + again


def assert_tokens_are_kept(taken: Steps) -> None:
    """What an event says about a trajectory's length never shrinks, and its tokens come from one place."""
    seen: dict[str, int] = {}
    for events in taken.events:
        for event in events:
            if event["e"] in ("fork", "segment", "resume", "move", "defer", "end", "stop"):
                tokens = event.get("tokens", 0)
                assert tokens >= seen.get(event["id"], 0), event
                if event["e"] == "resume":
                    assert tokens == seen[event["id"]], "it does not go on where it stopped"
                seen[event["id"]] = tokens


@pytest.mark.parametrize(
    ("name", "kv_blocks"), [("april", 256), ("es-grpo", 256), ("es-grpo", 24), ("ulorl", 24), ("untail", 256)]
)
async def test_segments_deferral_and_compaction(name, kv_blocks):
    """With 24 blocks there is room for what runs and not for what rests: that is evicted and computed again, not
    sampled again."""
    async with native_controller(small_recipe(name, **SMALL), [Doubter(None)], kv_blocks=kv_blocks) as controller:
        taken = await run(controller)
        counts = [engine.counts for engine in engines_of(controller)]
    assert_nothing_twice(taken, counts)
    assert_tokens_are_kept(taken)
    assert len(taken.all("defer")) > 0
    assert name == "april" or len(taken.all("segment")) > 0
    keeps = small_recipe(name).engine.kv_after_update == "keep"
    assert (counts[0].recomputed_after_update == 0) is keeps
    assert (counts[0].preemptions > 0) == (kv_blocks == 24)


def short_past() -> History:
    """A history that promises short responses."""
    history = History.open(None, "tiny", "tiny")
    for prompt in arithmetic():
        records = [Record(prompt.id, prompt.task, 0, 0, 5 + n % 2, "stop", 1.0, 0.5, False) for n in range(4)]
        history.add(records)
    return history


@pytest.mark.parametrize("name", ["adaseg", "dygs"])
async def test_copies_compute_nothing_of_what_they_share(name):
    changes = ["mechanisms.outliers.combine='any'", "mechanisms.outliers.probability=1.0"] if name == "dygs" else []
    recipe = small_recipe(name, *changes, **SMALL, group=6)
    async with native_controller(recipe, [Doubter(None)], prefix_cache=False, max_seqs=24) as controller:
        taken = await run(controller)
        counts = [engine.counts for engine in engines_of(controller)]
    assert_nothing_twice(taken, counts)
    assert_tokens_are_kept(taken)
    assert len(taken.all("fork")) > 0


@pytest.mark.parametrize("why", ["too long", "KV"])
async def test_demotion(why):
    """Out of the fast lane past 1.5 T tokens, or because the pool is full; into the segment lane, and never back."""
    changes = ["mechanisms.router.warmup_steps=0"]
    if why == "KV":
        changes += ["mechanisms.router.watermark=0.1", "mechanisms.router.safety=4.0"]
    recipe = small_recipe("es-grpo", *changes, **SMALL)
    async with native_controller(recipe, history=short_past(), kv_blocks=64) as controller:
        taken = await run(controller, [1])
        counts = [engine.counts for engine in engines_of(controller)]
    assert_nothing_twice(taken, counts)
    assert_tokens_are_kept(taken)
    fast = {event["id"] for event in taken.all("start") if event["lane"] == "fast"}
    demoted = {event["id"] for event in taken.all("segment") if event["id"] in fast}
    assert len(demoted) > 0
    assert {event["lane"] for event in taken.all("resume") if event["id"] in demoted} == {"segment"}
    if why == "too long":
        first = {event["id"]: event["tokens"] for event in reversed(taken.all("segment"))}
        assert {first[name] for name in demoted} == {24}, "1.5 T, with T = 2048 x 64 / 8192"


class Mover(Mechanism, Place):
    """Takes a running member to the other engine once, when it has written something."""

    every = 1e-3

    def __init__(self):
        super().__init__(None)
        self.moved: set[str] = set()

    def moves(self, view):
        moves = []
        for group in view.groups:
            for member in group.members:
                if member.state is State.RUNNING and member.length >= 8 and member.id not in self.moved:
                    self.moved.add(member.id)
                    moves.append(Move(member, 1 - member.engine))
        return moves


@pytest.mark.parametrize("name", ["es-grpo", "oversample"])
async def test_moves(name):
    """The target computes the whole prefix; nobody samples it again."""
    recipe = small_recipe(name, **SMALL)
    async with native_controller(recipe, [Mover(), Doubter(None)], engines=2, max_seqs=6) as controller:
        taken = await run(controller, range(1, 3))
        counts = [engine.counts for engine in engines_of(controller)]
    assert_nothing_twice(taken, counts)
    assert_tokens_are_kept(taken)
    moves = taken.all("move")
    assert len(moves) > 0
    where = {event["id"]: event["engine"] for event in taken.all("start")}
    for event in taken.all("move"):
        assert (where[event["id"]], event["engine"]) == (event["source"], 1 - event["source"])
        where[event["id"]] = event["engine"]
    assert min(count.sampled for count in counts) > 0
