"""Greedy tokens equal those of transformers.generate, for each family and for a real model."""

import pytest
import torch

from tests.helpers.equality import assert_same
from tests.helpers.models import random_decoder, transformers_twin
from tests.helpers.running import finish, spec
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.load import load_decoder
from untail.engine.models.shape import Rope, Shape
from untail.engine.models.sources import find_model

PROMPTS = [[3, 14, 15, 92, 65], list(range(40, 75)), [11] * 3]


def generate_with_transformers(model, prompt: list[int], tokens: int, eos: int | None = None) -> list[int]:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=eos, pad_token_id=eos or 0
        )
    return out[0, len(prompt) :].tolist()


def test_each_family(family_decoder, tmp_path):
    model = transformers_twin(family_decoder, tmp_path)
    engine = Engine(family_decoder, EngineConfig(kv_blocks=64))
    for number, prompt in enumerate(PROMPTS):
        engine.add(spec(str(number), prompt, budget=96))
    results = finish(engine)
    for number, prompt in enumerate(PROMPTS):
        expected = generate_with_transformers(model, prompt, 96)
        assert_same(family_decoder, prompt, expected, results[str(number)].tokens, f"transformers, prompt {number}")
        assert len(set(expected)) > 10, "the model repeats itself: the comparison would say little"


def test_round_trip_through_an_exported_folder(family_decoder, tmp_path):
    transformers_twin(family_decoder, tmp_path)
    loaded = load_decoder(find_model(str(tmp_path)), device="cpu")
    assert loaded.shape == family_decoder.shape
    for name, parameter in family_decoder.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


@pytest.mark.parametrize(
    "rope",
    [
        Rope(1000.0, "linear", factor=2.0, original_context=256),
        Rope(1000.0, "llama3", factor=8.0, original_context=64, low_freq_factor=1.0, high_freq_factor=4.0),
        Rope(1000.0, "yarn", factor=4.0, original_context=128),
    ],
    ids=lambda rope: rope.kind,
)
def test_rope_kinds(rope, tmp_path):
    base = random_decoder("llama")
    decoder = type(base)(Shape(**{**base.shape.__dict__, "rope": rope}))
    decoder.load_state_dict(base.state_dict())
    model = transformers_twin(decoder, tmp_path)
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("a", PROMPTS[1], budget=200))
    expected = generate_with_transformers(model, PROMPTS[1], 200)
    assert_same(decoder, PROMPTS[1], expected, finish(engine)["a"].tokens, f"rope {rope.kind}")


@pytest.mark.slow
def test_smollm2(smollm2):
    """The weights as transformers itself reads them from the GGUF, so that our reader is compared too."""
    from transformers import AutoModelForCausalLM, GgufConfig

    files = find_model("smollm2")
    model = AutoModelForCausalLM.from_pretrained(
        files.folder, gguf_file=files.gguf, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    prompts = [smollm2.tokenizer.chat(text) for text in ("Tell me a story about a small robot.", "What is 12 + 30?")]
    engine = Engine(smollm2.decoder, EngineConfig(kv_blocks=64))
    for number, prompt in enumerate(prompts):
        engine.add(spec(str(number), prompt, budget=64))
    results = finish(engine)
    for number, prompt in enumerate(prompts):
        expected = generate_with_transformers(model, prompt, 64)
        assert len(results[str(number)].tokens) == 64
        assert_same(smollm2.decoder, prompt, expected, results[str(number)].tokens, f"SmolLM2, prompt {number}")
