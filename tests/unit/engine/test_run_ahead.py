"""What runs ahead of the host gives every sequence what steps one by one give it, whatever control does meanwhile."""

import pytest
from tests.helpers.ahead import assert_same, check_control, check_same, run
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, join, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine, StepFailed
from untail.engine.models.names import split_out
from untail.engine.run_ahead import PATIENCE
from untail.types import Chunk, SamplingParams

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)


@pytest.mark.parametrize(
    ("max_seqs", "kv_blocks"), [(3, 512), (8, 512), (64, 512), (8, 16)], ids=["slots", "some", "all", "blocks"]
)
def test_the_same_tokens_and_figures(decoder, ahead, max_seqs, kv_blocks):
    check_same(decoder, decoder, max_seqs, kv_blocks)


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


def launches_until_it_begins(engine: Engine, newcomers: int) -> int:
    there = len(engine.names())
    for number in range(newcomers):
        engine.add(spec(f"new{there + number}", PROMPT, 200))
    launches = 0
    while engine.scheduler.new:
        engine.step()
        launches += 1
    return launches - 1  # the last of them lets it begin


def test_new_ones_begin_together(decoder, ahead):
    """To fill in a prompt breaks off what runs ahead: two of eight are worth that at once, one waits for others."""

    def busy(running: int) -> Engine:
        engine = Engine(decoder, EngineConfig(kv_blocks=256, max_seqs=16))
        for number in range(running):
            engine.add(spec(f"x{number}", PROMPT, 200))
        run(engine, {}, 2)
        return engine

    assert launches_until_it_begins(busy(running=8), newcomers=2) == 0
    assert launches_until_it_begins(busy(running=8), newcomers=1) == PATIENCE
    assert launches_until_it_begins(busy(running=0), newcomers=1) == 0


def test_who_comes_next_is_waited_for_again(decoder, ahead):
    engine = Engine(decoder, EngineConfig(kv_blocks=256, max_seqs=16))
    for number in range(12):
        engine.add(spec(f"x{number}", PROMPT, 400))
    run(engine, {}, 2)
    assert [launches_until_it_begins(engine, newcomers=1) for _ in range(2)] == [PATIENCE, PATIENCE]


@pytest.mark.parametrize("seed", range(8))
def test_control_in_the_middle_of_a_launch(decoder, ahead, seed):
    check_control(decoder, decoder, seed)


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
