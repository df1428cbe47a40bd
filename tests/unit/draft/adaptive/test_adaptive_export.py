"""The exported folder: what vLLM expects of an EAGLE drafter, read back unchanged, refused by another model."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers.models import FAMILIES
from tests.unit.draft.adaptive.helpers import TOY, random_model, toy_target

from untail.draft.adaptive.export import export, load
from untail.engine.models.shape import Shape
from untail.errors import ConfigError


def vllm_expects(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Read from vLLM 0.32, vllm/model_executor/models/llama_eagle.py: `load_weights` puts "model." before each name;
    `LlamaModel` has `fc` without a bias (2 hidden -> hidden) and one layer whose input norm is left out. Embedding and
    head are the target's if the file has none (`_maybe_share_embeddings` and `_maybe_share_lm_head` in
    vllm/v1/spec_decode/llm_base_proposer.py)."""
    hidden, inner = shape.hidden, shape.intermediate
    return {
        "fc.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": (shape.heads * shape.head_dim, hidden),
        "layers.0.self_attn.k_proj.weight": (shape.kv_heads * shape.head_dim, hidden),
        "layers.0.self_attn.v_proj.weight": (shape.kv_heads * shape.head_dim, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, shape.heads * shape.head_dim),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
    }


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_names_and_shapes_are_those_that_vllm_loads(family, tmp_path):
    shape = FAMILIES[family]
    export(random_model(shape).state_dict(), toy_target(shape=shape), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == vllm_expects(shape)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["EagleLlamaForCausalLM"]
    assert config["model_type"] == "llama", "transformers reads it, whatever the target is"
    assert config["num_hidden_layers"] == 1
    assert config["head_dim"] == shape.head_dim
    assert config["rope_parameters"]["rope_theta"] == shape.rope.theta
    assert config["vocab_size"] == shape.vocab
    assert not config.get("attention_bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_read_back_it_is_what_was_written(dtype, tmp_path):
    target, model = toy_target().to(dtype), random_model()
    export(model.state_dict(), target, tmp_path / "new" / "folder")
    back = load(tmp_path / "new" / "folder", target)
    assert back.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(back[name], tensor.to(dtype)), name


def test_the_order_of_what_is_fused(tmp_path):
    """q, k, v from the top, and gate before up: what `forward` splits them into."""
    model = random_model()
    export(model.state_dict(), toy_target(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["layers.0.self_attn.k_proj.weight"], model.qkv[32:48])
    assert torch.equal(tensors["layers.0.mlp.up_proj.weight"], model.gate_up[64:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden": 40}, "hidden_size 32, but a llama model of 2 layers has 40"),
        ({"vocab": 37}, "vocab_size 31, but a llama model of 2 layers has 37"),
        ({"heads": 2}, "num_attention_heads 4, but a llama model of 2 layers has 2"),
        ({"kv_heads": 4}, "num_key_value_heads 2, but a llama model of 2 layers has 4"),
        ({"layers": 3}, "made for a llama model of 2 layers, and not for a llama model of 3 layers"),
    ],
)
def test_a_drafter_of_another_model_is_refused(changes, said, tmp_path):
    export(random_model().state_dict(), toy_target(), tmp_path)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, toy_target(shape=replace(TOY, **changes)))


def test_equal_sizes_do_not_make_it_the_same_model(tmp_path):
    export(random_model().state_dict(), toy_target(), tmp_path)
    with pytest.raises(ConfigError, match=r"their embeddings have a cosine of -?0\.[01]"):
        load(tmp_path, toy_target(seed=1))


def test_a_target_that_was_trained_since_is_the_same_model(tmp_path):
    target = toy_target()
    export(random_model().state_dict(), target, tmp_path)
    target.embed += 0.05 * torch.randn(target.embed.shape, generator=torch.Generator().manual_seed(3))
    assert load(tmp_path, target).keys() == random_model().state_dict().keys()


def test_somebody_elses_drafter_may_hold_a_copy_of_the_embedding(tmp_path):
    export(random_model().state_dict(), toy_target(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["untail_target"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"embed_tokens.weight": torch.zeros(31, 32)}, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path, toy_target())["fc"], tensors["fc.weight"])
    save_file(tensors | {"fc.bias": torch.zeros(32)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"\(32,\) for tensor 'fc.bias', and this model's drafter nothing"):
        load(tmp_path, toy_target())


def test_a_folder_that_is_no_drafter(tmp_path):
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        load(tmp_path / "nowhere", toy_target())
    export(random_model().state_dict(), toy_target(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, toy_target())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has nothing for tensor"):
        load(tmp_path, toy_target())
