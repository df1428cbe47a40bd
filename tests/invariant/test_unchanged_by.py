"""Tokens depend on the prompt, the weights, the parameters and the random stream, and on nothing else.

Every test makes the same sequences in some other way and compares them, greedy and sampled, with sequences made alone.
"""

import asyncio
from contextlib import aclosing

import pytest

from tests.helpers.equality import assert_same
from tests.helpers.running import GREEDY, extend_to, finish, join, spec
from untail.backends.native import NativeBackend
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.types import Chunk, SamplingParams

SAMPLED = SamplingParams(temperature=1.0)
SHARED = [5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5, 0, 2, 8, 8, 4, 1, 9]
PROMPTS = [[*SHARED, 71], [*SHARED, 69, 39], [17, 21, 33], list(range(100, 160)), [1] * 16]
BUDGET = 80


@pytest.fixture(params=["greedy", "sampled"])
def sampling(request):
    return GREEDY if request.param == "greedy" else SAMPLED


@pytest.fixture
def alone(family_decoder, sampling):
    """Each prompt's tokens when nothing else is going on."""
    results = []
    for number, prompt in enumerate(PROMPTS):
        engine = Engine(family_decoder, EngineConfig(kv_blocks=64, prefix_cache=False))
        engine.add(spec("x", prompt, BUDGET, stream=number, sampling=sampling))
        results.append(finish(engine)["x"].tokens)
    return results


def start(decoder, sampling, budget=BUDGET, **config) -> Engine:
    engine = Engine(decoder, EngineConfig(**{"kv_blocks": 128, **config}))
    for number, prompt in enumerate(PROMPTS):
        engine.add(spec(str(number), prompt, budget, stream=number, sampling=sampling))
    return engine


def assert_unchanged(decoder, sampling, alone, results, what):
    for number, prompt in enumerate(PROMPTS):
        stream = None if sampling is GREEDY else number
        assert_same(decoder, prompt, alone[number], results[str(number)].tokens, what, stream)


def test_batch_composition(family_decoder, sampling, alone):
    assert_unchanged(family_decoder, sampling, alone, finish(start(family_decoder, sampling)), "batch")


def test_few_slots(family_decoder, sampling, alone):
    assert_unchanged(family_decoder, sampling, alone, finish(start(family_decoder, sampling, max_seqs=2)), "two slots")


@pytest.mark.parametrize("tokens", [1, 7, 16, 33])
def test_chunked_prefill(family_decoder, sampling, alone, tokens):
    engine = start(family_decoder, sampling, max_batch_tokens=tokens)
    assert_unchanged(family_decoder, sampling, alone, finish(engine), f"chunks of {tokens}")


def test_prefix_hit(family_decoder, sampling, alone):
    engine = start(family_decoder, sampling)
    assert_unchanged(family_decoder, sampling, alone, finish(engine), "first time")
    hits = engine.counts.prefix_hits
    for number, prompt in enumerate(PROMPTS):
        engine.release(str(number))
        engine.add(spec(str(number), prompt, BUDGET, stream=number, sampling=sampling))
    assert_unchanged(family_decoder, sampling, alone, finish(engine), "prefix hit")
    assert engine.counts.prefix_hits - hits >= 2 * 32 + 48


def test_preemption_and_recompute(family_decoder, sampling, alone):
    engine = start(family_decoder, sampling, kv_blocks=14)
    assert_unchanged(family_decoder, sampling, alone, finish(engine), "preempted")
    assert engine.counts.preemptions > 0
    assert engine.counts.recomputed_after_eviction > 0


def test_extend(family_decoder, sampling, alone):
    engine = start(family_decoder, sampling, budget=10)
    results = extend_to(engine, BUDGET, by=10)
    assert_unchanged(family_decoder, sampling, alone, results, "extended")
    fresh = sum(map(len, PROMPTS)) + (BUDGET - 1) * len(PROMPTS)
    assert engine.counts.computed + engine.counts.prefix_hits == fresh, "an extension computed something again"


def test_cut(family_decoder, sampling, alone):
    """Budgets that end anywhere, and sequences that are cut before they begin, while they wait and while they run."""
    engine = start(family_decoder, sampling, kv_blocks=14)
    results = {name: Chunk() for name in engine.names()}
    for steps in (0, 1, 7, 20, 3):
        for _ in range(steps):
            for name, chunk in engine.step():
                join(results[name], chunk)
        for name in engine.names():
            if not results[name].end:
                join(results[name], engine.cut(name))
        engine.check_integrity()
        for name, chunk in results.items():
            if len(chunk.tokens) < BUDGET:
                engine.extend(name, BUDGET - len(chunk.tokens))
                chunk.end = None
    for name, chunk in finish(engine).items():
        join(results[name], chunk)
    assert_unchanged(family_decoder, sampling, alone, results, "cut")


@pytest.mark.parametrize("at", [1, 12, 30])
def test_going_on_in_another_engine(family_decoder, sampling, alone, at):
    first = start(family_decoder, sampling)
    for _ in range(at):
        first.step()
    results = {name: first.abort(name) for name in first.names()}
    second = Engine(family_decoder, EngineConfig(kv_blocks=128))
    for number, prompt in enumerate(PROMPTS):
        tokens = results[str(number)].tokens
        assert len(tokens) == at
        second.add(spec(str(number), prompt + tokens, BUDGET - at, stream=number, sampling=sampling, done=at))
    for name, chunk in finish(second).items():
        join(results[name], chunk)
    assert_unchanged(family_decoder, sampling, alone, results, "moved")


def test_extend_after_eviction(family_decoder, sampling, alone):
    """What rests at a boundary gives its blocks up to those that run, and is brought back."""
    engine = start(family_decoder, sampling, budget=BUDGET // 2, kv_blocks=12, max_seqs=1)
    results = finish(engine)
    for name in results:
        engine.extend(name, BUDGET // 2)
    for name, chunk in finish(engine).items():
        join(results[name], chunk)
    assert_unchanged(family_decoder, sampling, alone, results, "evicted at a boundary")
    assert engine.counts.recomputed_after_eviction > 0


@pytest.mark.parametrize("at", [1, 12, 13, 30])
def test_fork(family_decoder, sampling, alone, at):
    """A child with the parent's stream and temperature repeats the parent; the parent does not notice."""
    engine = start(family_decoder, sampling)
    children: dict[str, tuple[int, int]] = {}

    def fork(step, so_far):
        if step == at:
            for number in range(len(PROMPTS)):
                forked, chunk = engine.fork(str(number), [number, number])
                join(so_far.setdefault(str(number), Chunk()), chunk)
                children.update((child, (number, forked.position)) for child in forked.children)

    results = finish(engine, fork)
    assert_unchanged(family_decoder, sampling, alone, results, "forked parent")
    assert len(children) == 2 * len(PROMPTS)
    for child, (number, done) in children.items():
        stream = None if sampling is GREEDY else number
        whole = alone[number][:done] + results[child].tokens
        assert_same(family_decoder, PROMPTS[number], alone[number], whole, "forked child", stream)


def test_weights_that_do_not_change(family_decoder, sampling, alone):
    """A version bump voids every key and value; computed again, they are the same."""
    engine = start(family_decoder, sampling)
    results = finish(engine, lambda step, _: engine.load_weights(None, step) if step in (5, 30) else None)
    assert_unchanged(family_decoder, sampling, alone, results, "version bump")
    assert engine.counts.recomputed_after_update > 0
    assert set(results["2"].version) == {0, 5, 30}


async def test_pause_and_resume(family_decoder, sampling, alone):
    engine = Engine(family_decoder, EngineConfig(kv_blocks=128))
    backend = NativeBackend(engine)

    async def collect(number: int) -> Chunk:
        whole = Chunk()
        request = spec(str(number), PROMPTS[number], BUDGET, stream=number, sampling=sampling, chunk=9)
        async with aclosing(backend.generate(request)) as chunks:
            async for chunk in chunks:
                join(whole, chunk)
                if chunk.end == "boundary":
                    break
        return whole

    tasks = [asyncio.create_task(collect(number)) for number in range(len(PROMPTS))]
    for steps in (5, 30):
        while engine.counts.steps < steps:
            await asyncio.sleep(0)
        await backend.pause("keep")
        engine.check_integrity()
        await backend.resume()
    results = dict(zip(map(str, range(len(PROMPTS))), await asyncio.gather(*tasks), strict=True))
    await backend.close()
    assert_unchanged(family_decoder, sampling, alone, results, "paused")


def test_sleep_and_wake(family_decoder, sampling, alone):
    engine = start(family_decoder, sampling)

    def nap(step, _):
        if step == 20:
            engine.sleep()
            assert engine.runner.kv is None
            engine.wake()

    assert_unchanged(family_decoder, sampling, alone, finish(engine, nap), "slept")


def test_smollm2_batched_forked_and_preempted(smollm2):
    """The same on a real model, all at once."""
    texts = ("Tell me a story about a robot.", "Why is the sky blue?", "Count to fifty.")
    prompts = [smollm2.tokenizer.chat(text) for text in texts]
    alone = []
    for prompt in prompts:
        engine = Engine(smollm2.decoder, EngineConfig(kv_blocks=32))
        engine.add(spec("x", prompt, 64))
        alone.append(finish(engine)["x"].tokens)
    engine = Engine(smollm2.decoder, EngineConfig(kv_blocks=15, max_batch_tokens=24))
    for number, prompt in enumerate(prompts):
        engine.add(spec(str(number), prompt, 64))
    children: list[str] = []

    def fork(step, so_far):
        if step == 20:
            forked, chunk = engine.fork("0", [7])
            join(so_far.setdefault("0", Chunk()), chunk)
            children.extend(forked.children)

    results = finish(engine, fork)
    for number, prompt in enumerate(prompts):
        assert_same(smollm2.decoder, prompt, alone[number], results[str(number)].tokens, f"SmolLM2 {number}")
    tail = results[children[0]].tokens
    assert_same(smollm2.decoder, prompts[0], alone[0], alone[0][: 64 - len(tail)] + tail, "SmolLM2 fork")
    assert engine.counts.preemptions > 0
