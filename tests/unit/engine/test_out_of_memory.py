"""The device runs out of memory: the step is taken again beside a smaller KV pool, and nothing is lost."""

import weakref

import pytest
import torch
from tests.helpers.running import finish, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine
from untail.engine.graphs import DecodeGraphs
from untail.engine.runner import Runner
from untail.errors import EngineMemoryError
from untail.types import SamplingParams


def failing_at(calls: set[int], function):
    """Out of memory at those calls, counted from 1; else the function itself."""
    count = 0

    def call(*given, **more):
        nonlocal count
        count += 1
        if count in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return function(*given, **more)

    return call


def start(decoder, **config) -> Engine:
    engine = Engine(decoder, EngineConfig(**{"kv_blocks": 64, "max_batch_tokens": 32, **config}))
    for number in range(5):
        engine.add(spec(str(number), range(20 + number), 40, stream=number, sampling=SamplingParams()))
    return engine


@pytest.mark.parametrize("calls", [{1}, {2, 3}, {9}, {40}])
def test_in_a_step(decoder, monkeypatch, capsys, calls):
    expected = finish(start(decoder))
    engine = start(decoder)
    monkeypatch.setattr(engine.runner, "run", failing_at(calls, engine.runner.run))
    results = finish(engine)
    assert {name: chunk.tokens for name, chunk in results.items()} == {n: c.tokens for n, c in expected.items()}
    assert engine.pool.total == engine.runner.blocks == engine.limits.blocks == {1: 48, 2: 36}[len(calls)]
    assert engine.runner.kv.shape[2] == engine.pool.total
    assert engine.counts.sampled == 200
    assert engine.counts.computed - engine.counts.recomputed_after_eviction <= sum(range(20, 25)) + 5 * 39


def test_what_the_step_had_is_gone_when_the_smaller_pool_is_made(decoder, monkeypatch):
    """An error holds its traceback, and that the frames with the step's tensors: the pool would find no memory."""
    engine, real = start(decoder), Runner.allocate
    held, was_held = [], []

    def run(plan):
        monkeypatch.undo()
        monkeypatch.setattr(Runner, "allocate", allocate)
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def allocate(self):
        was_held.append(held[0]() is not None)
        if len(was_held) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(self)

    monkeypatch.setattr(engine.runner, "run", run)
    assert len(finish(engine)) == 5
    assert was_held == [False, False]


def test_in_a_launch(decoder, monkeypatch):
    expected = finish(start(decoder))
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    engine = start(decoder)
    monkeypatch.setattr(DecodeGraphs, "launch", failing_at({2, 5}, DecodeGraphs.launch))
    results = finish(engine)
    assert {name: chunk.tokens for name, chunk in results.items()} == {n: c.tokens for n, c in expected.items()}
    assert engine.pool.total == 36


def test_when_graphs_are_captured_at_the_start(decoder, monkeypatch, capsys):
    """What was captured over the pool that was too large is captured again."""
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    engine = Engine(decoder, EngineConfig(kv_blocks=63, max_seqs=4))
    captured, real = [], DecodeGraphs.capture

    def capture(graphs, rows, width=1):
        captured.append(rows)
        real(graphs, rows, width)

    monkeypatch.setattr(DecodeGraphs, "capture", failing_at({2}, capture))
    engine.warm_up()
    assert captured == [1, 1, 2, 4]
    assert engine.runner.kv.shape[2] == engine.pool.total == engine.limits.blocks == 47
    said = "out of memory beside a KV pool of 63 blocks: going on with 47; lower engine.kv_gib to start like that"
    assert said in capsys.readouterr().err


def test_a_model_that_leaves_no_memory_at_all_is_said_to(decoder, monkeypatch):
    engine = Engine(decoder, EngineConfig(kv_blocks=8))
    monkeypatch.setattr(engine.runner, "warm_up", failing_at(set(range(100)), engine.runner.warm_up))
    with pytest.raises(EngineMemoryError, match=r"out of memory beside a KV pool of .*, or use a smaller model"):
        engine.warm_up()


def test_when_the_pool_is_taken_back(decoder, monkeypatch):
    expected = finish(start(decoder))
    engine = start(decoder)
    engine.step()
    engine.sleep()
    monkeypatch.setattr(Runner, "allocate", failing_at({1, 2}, Runner.allocate))
    engine.wake()
    assert engine.runner.kv.shape[2] == engine.pool.total == 36
    assert {name: chunk.tokens for name, chunk in finish(engine).items()} == {
        name: chunk.tokens for name, chunk in expected.items()
    }


def test_a_pool_that_holds_one_sequence_gets_no_smaller(decoder, monkeypatch):
    engine = start(decoder, kv_blocks=5)
    monkeypatch.setattr(engine.runner, "run", failing_at(set(range(100)), engine.runner.run))
    with pytest.raises(EngineMemoryError, match="a sequence of 64 tokens needs; lower its budget"):
        engine.step()
