"""The engine on a GPU against the engine on the CPU, in float32: `pytest -m gpu tests/gpu`."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.helpers import kernels
from tests.helpers.ahead import check_control, check_same
from tests.helpers.drafting import Knowing, switching
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, spec

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.load import refuse_if_too_heavy
from untail.errors import ModelError, RequestError
from untail.types import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def pair(request):
    decoder = kernels.make_decoder(kernels.SHAPES[request.param], "cpu")
    return copy.deepcopy(decoder).to("cuda"), decoder


@pytest.mark.parametrize(("max_seqs", "kv_blocks"), [(3, 512), (64, 512), (8, 16)])
def test_the_same_tokens_and_figures(pair, max_seqs, kv_blocks):
    check_same(*pair, max_seqs, kv_blocks)


def test_a_warm_engine_captures_nothing_more(pair):
    engine = Engine(pair[0], EngineConfig(kv_blocks=128, max_seqs=8))
    engine.warm_up()
    graphs = engine.ahead._ready()._graphs
    captured = set(graphs)
    assert captured == {(bucket, 1) for bucket in engine.ahead.buckets}
    cold = Engine(pair[0], EngineConfig(kv_blocks=128, max_seqs=8))
    for one in (engine, cold):
        for number in range(9):
            one.add(spec(str(number), [1, 2, 3], 5 + 9 * number, stream=number))
    warm, expected = finish(engine), finish(cold)
    assert set(graphs) == captured
    assert {name: result.tokens for name, result in warm.items()} == {n: r.tokens for n, r in expected.items()}


@pytest.mark.parametrize("seed", range(4))
def test_control_in_the_middle_of_a_launch(pair, seed):
    check_control(*pair, seed)


def test_drafts_verified_in_graphs(pair):
    decoder, reference = pair
    prompts = [[3, 1, 4], list(range(50)), [7]]

    def respond(decoder, speculation=None):
        engine = Engine(decoder, EngineConfig(kv_blocks=128), speculation=speculation)
        for number, prompt in enumerate(prompts):
            engine.add(spec(str(number), prompt, 60, stream=number, sampling=SamplingParams()))
        results = finish(engine)
        return engine, [results[str(number)].tokens for number in range(len(prompts))]

    _, alone = respond(reference)
    drafter = Knowing({tuple(p): t for p, t in zip(prompts, alone, strict=True)}, decoder.shape.vocab)
    engine, drafted = respond(decoder, switching("knowing", drafter))
    assert drafted == alone
    assert engine.counts.accepted > 0


def test_graphs_read_updated_weights(pair):
    decoder, reference = pair
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", range(9), 30))
    finish(engine)
    engine.release("x")
    with torch.no_grad():
        for one in (decoder, reference):
            one.norm.mul_(-1)
    engine.load_weights(None, 1)
    engine.add(spec("y", range(9), 30))
    alone = Engine(reference, EngineConfig(kv_blocks=64))
    alone.add(spec("y", range(9), 30))
    assert finish(engine)["y"].tokens == finish(alone)["y"].tokens
    with torch.no_grad():
        for one in (decoder, reference):
            one.norm.mul_(-1)


def test_a_head_size_without_kernel_goes_through_sdpa(capsys):
    decoder = random_decoder("llama")  # heads of 8
    check_same(copy.deepcopy(decoder).to("cuda"), decoder, 8, 512)
    assert "heads of 8 have no kernel here" in capsys.readouterr().err


def test_out_of_memory_in_the_middle_of_a_step(pair):
    """Real: the pool takes all but a little, so that a step's own memory is not there."""
    decoder, _ = pair
    small = Engine(decoder, EngineConfig(kv_blocks=64))
    small.add(spec("x", range(9), 30))
    finish(small)  # libraries have taken what they need
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - 600 * 2**20, dtype=torch.uint8, device="cuda")
    blocks = (torch.cuda.mem_get_info()[0] - 40 * 2**20) // small.runner.block_bytes(decoder)
    engine = Engine(decoder, EngineConfig(kv_blocks=blocks, max_batch_tokens=131072, max_seqs=512))
    for number in range(512):
        engine.add(spec(str(number), [number % 150] * 300, 4, stream=number))
    results = finish(engine)
    del ballast
    assert engine.pool.total < blocks
    assert all(len(chunk.tokens) == 4 for chunk in results.values())


def test_too_little_memory_says_what_would_fit():
    shape = replace(kernels.SHAPES["llama"], layers=100, hidden=2**17, intermediate=2**19)
    with pytest.raises(ModelError, match=r"cuda has .* GiB free; use .*a model of at most"):
        refuse_if_too_heavy(shape, torch.device("cuda"), torch.float32)
    with pytest.raises(RequestError, match=r"which would hold \d+ blocks or \d+ tokens; lower engine\.kv_gib"):
        Engine(kernels.make_decoder(kernels.SHAPES["llama"], "cuda"), EngineConfig(kv_gib=1e5))
