"""Drafts verified in graphs: the same tokens as undrafted ones, one graph for each width and bucket. While nobody
drafts, sequences run ahead."""

import pytest
from tests.helpers.drafting import Knowing, switching
from tests.helpers.running import finish, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine
from untail.engine.graphs import DecodeGraphs
from untail.types import SamplingParams

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], list(range(50)), [2] * 16, [7]]


def respond(decoder, prompt, stream) -> list[int]:
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", prompt, 60, stream=stream, sampling=SamplingParams()))
    return finish(engine)["x"].tokens


@pytest.mark.parametrize("kv_blocks", [128, 14])
def test_drafted_tokens_are_the_same(decoder, monkeypatch, kv_blocks):
    """Depths from none to more than any graph is wide, in a roomy pool and in one where sequences lose their blocks."""
    alone = [respond(decoder, prompt, number) for number, prompt in enumerate(PROMPTS)]
    responses = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, alone, strict=True)}
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    speculation = switching("knowing", Knowing(responses, decoder.shape.vocab))
    engine = Engine(decoder, EngineConfig(kv_blocks=kv_blocks, context=256), speculation=speculation)
    for number, prompt in enumerate(PROMPTS):
        engine.add(spec(str(number), prompt, 60, stream=number, sampling=SamplingParams()))
    results = finish(engine)
    assert [results[str(number)].tokens for number in range(len(PROMPTS))] == alone
    assert engine.counts.accepted > 0
    widths = {width for _, width in engine.runner.verifier._graphs._steps}
    assert widths <= {1, 2, 4, 8}
    assert 8 in widths


def test_a_device_with_narrow_tiles_takes_narrow_drafts_only(decoder, monkeypatch):
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    monkeypatch.setattr(TorchKernels, "widest", 5)
    alone = respond(decoder, PROMPTS[0], 0)
    speculation = switching("knowing", Knowing({tuple(PROMPTS[0]): alone}, decoder.shape.vocab, wrong=0.0))
    engine = Engine(decoder, EngineConfig(kv_blocks=64), speculation=speculation)
    engine.add(spec("x", PROMPTS[0], 60, stream=0, sampling=SamplingParams()))
    assert finish(engine)["x"].tokens == alone
    assert {width for _, width in engine.runner.verifier._graphs._steps} == {2}


@pytest.fixture
def captured(monkeypatch) -> list[tuple[DecodeGraphs, int, int]]:
    """What a GPU would capture."""
    monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    made = []
    monkeypatch.setattr(DecodeGraphs, "capture", lambda graphs, rows, width=1: made.append((graphs, rows, width)))
    return made


@pytest.mark.parametrize(("max_seqs", "count"), [(64, 5), (3, 3)])
def test_a_warm_engine_needs_no_other_graph_for_a_few_sequences(decoder, captured, max_seqs, count):
    speculation = switching("knowing", Knowing({tuple(prompt): [5] * 60 for prompt in PROMPTS}, decoder.shape.vocab))
    engine = Engine(decoder, EngineConfig(kv_blocks=128, max_seqs=max_seqs), speculation=speculation)
    engine.warm_up()
    warm = {(rows, width) for graphs, rows, width in captured if graphs is engine.runner.verifier._graphs}
    for number, prompt in enumerate(PROMPTS[:count]):
        engine.add(spec(str(number), prompt, 20 + 9 * number, stream=number, sampling=SamplingParams()))
    finish(engine)
    used = set(engine.runner.verifier._graphs._steps)
    assert used <= warm
    assert len(used) > 1
    assert max(rows for rows, _ in warm) == {64: 16, 3: 4}[max_seqs]


def test_where_nobody_drafts_nothing_is_captured_for_drafts(decoder, captured):
    engine = Engine(decoder, EngineConfig(kv_blocks=128, max_seqs=4))
    engine.warm_up()
    assert [(rows, width) for _, rows, width in captured] == [(1, 1), (2, 1), (4, 1)]


def test_no_wider_graph_is_captured_than_the_device_can_take(decoder, captured, monkeypatch):
    monkeypatch.setattr(TorchKernels, "widest", 5)
    speculation = switching("knowing", Knowing({}, decoder.shape.vocab))
    Engine(decoder, EngineConfig(kv_blocks=64, max_seqs=2), speculation=speculation).warm_up()
    assert {width for _, _, width in captured} == {1, 2, 4}
