"""The bundled model is what its provenance says, and what the quickstart needs."""

import hashlib
import importlib.util
import json
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from untail.config import EngineConfig
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.engine import Engine
from untail.engine.models.load import LoadedModel, load_model
from untail.engine.models.sources import find_model
from untail.rewards import build_reward
from untail.tasks import load_tasks
from untail.tasks.arithmetic import REWARD

FOLDER = find_model("tiny").folder
SCRIPT = Path(__file__).parents[2] / "scripts" / "build_tiny.py"


@pytest.fixture(scope="module")
def provenance() -> dict[str, Any]:
    return json.loads((FOLDER / "provenance.json").read_text())


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_tiny", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model("tiny", device="cpu")


def test_the_weights_are_those_of_the_provenance(provenance: dict[str, Any]) -> None:
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert digest == provenance["weights_sha256"]


def test_the_script_still_makes_the_examples_it_was_trained_on(provenance: dict[str, Any], script: ModuleType) -> None:
    assert script.examples_sha256(provenance["training"]["seed"]) == provenance["examples_sha256"], "re-build the model"


def test_it_is_small(provenance: dict[str, Any], tiny: LoadedModel) -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 3_000_000
    assert sum(parameter.numel() for parameter in tiny.decoder.parameters()) == provenance["parameters"] <= 1_100_000


def test_the_measured_figures_are_what_the_quickstart_needs(provenance: dict[str, Any]) -> None:
    train, evaluation = provenance["measured"]["train"], provenance["measured"]["eval"]
    assert 0.25 <= evaluation["score"] <= 0.60
    assert train["length"]["p99"] >= 6 * train["length"]["p50"]
    assert 0.005 < train["cut_at_budget"] < 0.10  # loops: some, not many
    assert train["groups_with_variance"] > 0.60
    by_difficulty = list(train["length_by_difficulty"].values())
    assert by_difficulty == sorted(by_difficulty)  # so that history can tell a long prompt


def test_the_measured_score_is_what_one_gets(provenance: dict[str, Any], script: ModuleType, tiny: LoadedModel) -> None:
    prompts = load_tasks({"name": "arithmetic", "split": "eval", "size": 64}, tiny.tokenizer, None).prompts
    engine = Engine(tiny.decoder, EngineConfig(kv_gib=0.1))
    responses = script.sample(engine, prompts, 1, tiny.tokenizer.eos_ids)
    reward = build_reward(REWARD, "reward")
    right = sum(reward.score(tiny.tokenizer.decode(responses[f"{p.id}/0"]), p) for p in prompts)
    assert abs(right / len(prompts) - provenance["measured"]["eval"]["score"]) < 0.2


def test_no_evaluation_prompt_was_trained_on(script: ModuleType, tiny: LoadedModel) -> None:
    """True by the hash that splits problems; seen here on what the script really trains on."""
    tasks = load_tasks({"name": "arithmetic", "split": "eval", "mixture": {1: 1.0}}, tiny.tokenizer, None)
    evaluation = {prompt.text for prompt in tasks.prompts}
    for moods in (list(script.MOODS.values()), [script.TIDY]):
        trained = {problem for problem, _, _ in islice(script.examples(0, moods), 20_000)}
        rendered = {f"<|user|>{problem}<|assistant|>" for problem in trained}
        assert evaluation.isdisjoint(rendered)


def test_transformers_loads_it_in_float32_with_the_same_logits(tiny: LoadedModel) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.float32}
    ids = torch.tensor(tiny.tokenizer.chat("12+34-5=?") + tiny.tokenizer.encode("12+34=46\n46-5="))
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
        ours = tiny.decoder.logits(tiny.decoder(ids, torch.arange(len(ids)), VarlenAttention([len(ids)])))
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_the_tokenizer_reads_any_text_and_chats(tiny: LoadedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "12+3=15\nwait\n#### 15 naïve ✓ <tag>"
    assert tiny.tokenizer.decode(tiny.tokenizer.encode(text)) == text
    assert len(tiny.tokenizer.encode("12+34")) == 5
    messages = [{"role": "user", "content": "1+2+3=?"}, {"role": "assistant", "content": "#### 6"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "<|user|>1+2+3=?<|assistant|>#### 6<|end|>"
    assert tiny.tokenizer.decode(tiny.tokenizer.chat("1+2+3=?"), skip_special=False) == "<|user|>1+2+3=?<|assistant|>"
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert tiny.tokenizer.eos_ids == tiny.decoder.shape.eos_ids == (tokenizer.eos_token_id,)
