"""What runs ahead of the host gives every sequence what steps one by one give it, whatever control does meanwhile."""

import random

import pytest
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, join, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine, StepFailed
from untail.engine.models.names import split_out
from untail.types import Chunk, SamplingParams

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)


def steps_one_by_one(decoder, config, specs) -> dict[str, Chunk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "kernels_for", lambda decoder: None)
        engine = Engine(decoder, config)
    for one in specs:
        engine.add(one)
    return finish(engine)


def many(count: int, **more) -> list:
    generator = random.Random(0)
    return [
        spec(
            str(number),
            [generator.randrange(199) for _ in range(generator.randrange(1, 60))],
            generator.randrange(1, 50),
            stream=number,
            sampling=SamplingParams(
                temperature=generator.choice([0.0, 0.7, 1.0]), stop_ids=tuple(range(number % 5)), **more
            ),
            chunk=generator.choice([1, 5, 16, 64]),
        )
        for number in range(count)
    ]


def assert_same(chunk: Chunk, expected: Chunk) -> None:
    assert (chunk.tokens, chunk.end) == (expected.tokens, expected.end)
    for column in ("policy_logprob", "behaviour_logprob", "entropy", "p_eos"):
        assert getattr(chunk, column) == pytest.approx(getattr(expected, column), abs=1e-4)


@pytest.mark.parametrize(
    ("max_seqs", "kv_blocks"), [(3, 512), (8, 512), (64, 512), (8, 16)], ids=["slots", "some", "all", "blocks"]
)
def test_the_same_tokens_and_figures(decoder, ahead, max_seqs, kv_blocks):
    config = EngineConfig(max_seqs=max_seqs, kv_blocks=kv_blocks, max_batch_tokens=64, context=110)
    specs = many(20)
    engine = Engine(decoder, config)
    for one in specs:
        engine.add(one)
    results = finish(engine)
    expected = steps_one_by_one(decoder, config, specs)
    for name in expected:
        assert_same(results[name], expected[name])
    assert engine.counts.sampled == sum(len(chunk.tokens) for chunk in results.values())
    assert engine.counts.overrun == 0 or kv_blocks == 16


def test_what_a_device_cannot_do_alone_is_planned(decoder, ahead):
    """Truncated sampling, stop strings, many stop ids and hidden sums, among sequences that run ahead."""
    config = EngineConfig(kv_blocks=256)
    decode = lambda tokens: "".join(f"<{token}>" for token in tokens)
    sampling = {
        "top_p": SamplingParams(top_p=0.8),
        "top_k": SamplingParams(top_k=5),
        "min_p": SamplingParams(min_p=0.1),
        "stops": SamplingParams(stop_ids=tuple(range(9))),
        "string": SamplingParams(stop_strings=("<7",)),
        "plain": SamplingParams(),
    }
    engine, alone = Engine(decoder, config, decode), Engine(decoder, config, decode)
    for name, params in sampling.items():
        engine.add(spec(name, PROMPT, 30, stream=3, sampling=params))
    engine.add(spec("hidden", PROMPT, 30, stream=3, sampling=SamplingParams(), hidden=True))
    results = finish(engine)
    alone.ahead = None
    for name, params in sampling.items():
        alone.add(spec(name, PROMPT, 30, stream=3, sampling=params))
    for name, expected in finish(alone).items():
        assert_same(results[name], expected)
    assert results["hidden"].hidden_sum is not None
    assert results["hidden"].tokens == results["plain"].tokens


def test_chunks_have_the_size_asked_for(decoder, ahead):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 22, chunk=5))
    sizes = []
    while engine.has_work:
        sizes += [(len(chunk.tokens), chunk.end) for _, chunk in engine.step()]
    assert sizes == [(5, None)] * 4 + [(2, "boundary")]


def run(engine: Engine, results: dict[str, Chunk], steps: int) -> None:
    for _ in range(steps):
        for name, chunk in engine.step():
            join(results.setdefault(name, Chunk()), chunk)
        engine.check_integrity()


@pytest.mark.parametrize("seed", range(8))
def test_control_in_the_middle_of_a_launch(decoder, ahead, seed):
    """Cuts, extensions, forks, aborts, preemptions and new weights at any step: everybody's tokens are those of a
    sequence that was left alone, as far as it got."""
    generator = random.Random(seed)
    engine = Engine(decoder, EngineConfig(kv_blocks=40, max_seqs=6, max_batch_tokens=48))
    sampling = SamplingParams()
    for number in range(8):
        engine.add(spec(str(number), range(3 + 5 * number), 90, stream=number, sampling=sampling))
    results: dict[str, Chunk] = {}
    forks: dict[str, tuple[str, int, int]] = {}
    for _ in range(30):
        run(engine, results, generator.randrange(3))
        names = [name for name in engine.names() if "/" not in name]
        if not names:
            break
        name, verb = generator.choice(names), generator.choice(["cut", "fork", "abort", "preempt", "weights", "sleep"])
        at_boundary = name in engine.scheduler.resting
        if verb == "cut" and not at_boundary:
            join(results.setdefault(name, Chunk()), engine.cut(name))
            if generator.random() < 0.5:
                engine.extend(name, 30)
        elif verb == "fork" and len(engine.names()) < 14:
            forked, chunk = engine.fork(name, [1000 + len(forks)])
            join(results.setdefault(name, Chunk()), chunk)
            forks[forked.children[0]] = (name, forked.position, 1000 + len(forks))
        elif verb == "abort" and generator.random() < 0.3:
            join(results.setdefault(name, Chunk()), engine.abort(name))
        elif verb == "preempt" and engine.scheduler.running:
            engine.scheduler._preempt(generator.choice(engine.scheduler.running))
        elif verb == "weights":
            engine.load_weights(dict(split_out(decoder)), engine.version + 1)
        elif verb == "sleep":
            engine.sleep()
            engine.wake()
        engine.check_integrity()
    while engine.has_work:
        run(engine, results, 1)
    for number in range(8):
        got = results[str(number)].tokens
        own = steps_one_by_one(
            decoder,
            EngineConfig(kv_blocks=64),
            [spec("x", range(3 + 5 * number), max(1, len(got)), stream=number, sampling=sampling)],
        )["x"].tokens
        assert got == own[: len(got)]
    for child, (parent, position, stream) in forks.items():
        prompt = [*range(3 + 5 * int(parent)), *results[parent].tokens[:position]]
        got = results.get(child, Chunk()).tokens  # a copy of what rests goes nowhere by itself
        own = steps_one_by_one(
            decoder, EngineConfig(kv_blocks=64), [spec("x", prompt, max(1, len(got)), stream=stream, sampling=sampling)]
        )["x"].tokens
        assert got == own[: len(got)]


def test_tokens_past_an_abort_are_overrun(decoder, ahead):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 60))
    results: dict[str, Chunk] = {}
    run(engine, results, 4)
    rest = engine.abort("x")
    assert engine.drain() == []
    assert engine.counts.overrun == 8
    assert engine.counts.sampled == len(rest.tokens)
    assert engine.pool.free == engine.pool.total


def test_drain_leaves_nothing_under_way(decoder, ahead):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 60, chunk=4))
    results: dict[str, Chunk] = {}
    run(engine, results, 4)
    for name, chunk in engine.drain():
        join(results[name], chunk)
    assert engine.ahead.under_way == 0
    assert len(results["x"].tokens) == 24
    engine.load_weights(dict(split_out(random_decoder("llama", seed=1))), 1)
    for name, chunk in finish(engine).items():
        join(results[name], chunk)
    assert results["x"].version == [0] * 25 + [1] * 35


def test_weights_that_blow_up_fail_their_sequences_and_no_others(ahead):
    decoder = random_decoder("llama")
    engine = Engine(decoder, EngineConfig(kv_blocks=64, kv_after_update="keep"))
    engine.add(spec("x", PROMPT, 60))
    run(engine, {}, 3)
    engine.drain()
    decoder.requires_grad_(False).norm.fill_(float("nan"))
    engine.load_weights(None, 1)
    with pytest.raises(StepFailed, match="not finite"):
        finish(engine)
    assert not engine.names()
    engine.check_integrity()
