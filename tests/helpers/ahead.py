"""Engines that run ahead of the host, on whatever device, against one that steps on the CPU one token at a time."""

import random

import pytest

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.names import split_out
from untail.types import Chunk, SamplingParams, SequenceSpec

from .running import finish, join, spec


def steps_one_by_one(decoder, config, specs) -> dict[str, Chunk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "kernels_for", lambda decoder: None)
        engine = Engine(decoder, config)
    for one in specs:
        engine.add(one)
    return finish(engine)


def many(count: int, vocab: int) -> list[SequenceSpec]:
    generator = random.Random(0)
    return [
        spec(
            str(number),
            [generator.randrange(vocab) for _ in range(generator.randrange(1, 60))],
            generator.randrange(1, 50),
            stream=number,
            sampling=SamplingParams(temperature=generator.choice([0.0, 0.7, 1.0]), stop_ids=tuple(range(number % 5))),
            chunk=generator.choice([1, 5, 16, 64]),
        )
        for number in range(count)
    ]


def assert_same(chunk: Chunk, expected: Chunk) -> None:
    assert (chunk.tokens, chunk.end) == (expected.tokens, expected.end)
    for column in ("policy_logprob", "behaviour_logprob", "entropy", "p_eos"):
        assert getattr(chunk, column) == pytest.approx(getattr(expected, column), abs=1e-4)


def run(engine: Engine, results: dict[str, Chunk], steps: int) -> None:
    for _ in range(steps):
        for name, chunk in engine.step():
            join(results.setdefault(name, Chunk()), chunk)
        engine.check_integrity()


def check_same(decoder: Decoder, reference: Decoder, max_seqs: int, kv_blocks: int) -> None:
    """Many sequences of all kinds, in few slots or many, in a roomy pool or a tight one."""
    config = EngineConfig(max_seqs=max_seqs, kv_blocks=kv_blocks, max_batch_tokens=64, context=110)
    specs = many(20, decoder.shape.vocab)
    engine = Engine(decoder, config)
    for one in specs:
        engine.add(one)
    results = finish(engine)
    expected = steps_one_by_one(reference, config, specs)
    for name in expected:
        assert_same(results[name], expected[name])
    assert engine.counts.sampled == sum(len(chunk.tokens) for chunk in results.values())
    assert engine.counts.overrun == 0 or kv_blocks == 16


def check_control(decoder: Decoder, reference: Decoder, seed: int) -> None:
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
            reference,
            EngineConfig(kv_blocks=64),
            [spec("x", range(3 + 5 * number), max(1, len(got)), stream=number, sampling=sampling)],
        )["x"].tokens
        assert got == own[: len(got)]
    for child, (parent, position, stream) in forks.items():
        prompt = [*range(3 + 5 * int(parent)), *results[parent].tokens[:position]]
        got = results.get(child, Chunk()).tokens  # a copy of what rests goes nowhere by itself
        own = steps_one_by_one(
            reference,
            EngineConfig(kv_blocks=64),
            [spec("x", prompt, max(1, len(got)), stream=stream, sampling=sampling)],
        )["x"].tokens
        assert got == own[: len(got)]
