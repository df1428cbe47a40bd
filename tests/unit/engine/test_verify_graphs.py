"""Drafts verified in graphs: the same tokens as undrafted ones, one graph for each width and bucket. While nobody
drafts, sequences run ahead."""

import pytest
from tests.helpers.drafting import Knowing, switching
from tests.helpers.running import finish, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine
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
