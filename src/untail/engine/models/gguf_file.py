"""Reading a GGUF file: its shape, and its tensors dequantised under Hugging Face's names.

llama.cpp stores llama's query and key rows with the two rotary halves interleaved; they are put back in order here.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from untail.engine.models.shape import FAMILIES, Rope, Shape
from untail.errors import ModelError

TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def read_gguf(path: Path) -> tuple[Shape, dict[str, Tensor]]:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the reader raises whatever numpy does on a file that is cut or not GGUF at all
        raise ModelError(f"{path} is not a readable GGUF file: {error}") from error
    names = {tensor.name for tensor in reader.tensors}
    shape = _shape({key: field.contents() for key, field in reader.fields.items()}, names, str(path))
    tensors = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            raise ModelError(f"{path}: its rotary factors (rope_freqs) are not supported; use the safetensors model")
        name = _hf_name(tensor.name, path)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(size) for size in reversed(tensor.shape)])
        if shape.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _halves_in_order(values, shape.heads if name.endswith("q_proj.weight") else shape.kv_heads)
        tensors[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    return shape, tensors


def _shape(fields: dict[str, Any], names: set[str], where: str) -> Shape:
    family = fields.get("general.architecture")
    if family not in FAMILIES:
        raise ModelError(f"{where}: architecture {family!r} is not supported; untail runs {', '.join(FAMILIES)}")
    scaling = fields.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{where}: rope scaling {scaling!r} in a GGUF is not supported; use the safetensors model")

    def need(key: str) -> Any:
        if f"{family}.{key}" not in fields:
            raise ModelError(f"{where}: the GGUF lacks {family}.{key}")
        return fields[f"{family}.{key}"]

    heads, hidden = need("attention.head_count"), need("embedding_length")
    eos = fields.get("tokenizer.ggml.eos_token_id")
    return Shape(
        family=family,
        vocab=len(fields["tokenizer.ggml.tokens"]),
        hidden=hidden,
        intermediate=need("feed_forward_length"),
        layers=need("block_count"),
        heads=heads,
        kv_heads=fields.get(f"{family}.attention.head_count_kv", heads),
        head_dim=fields.get(f"{family}.attention.key_length", hidden // heads),
        context=need("context_length"),
        norm_eps=need("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        qk_norm="blk.0.attn_q_norm.weight" in names,
        rope=Rope(fields.get(f"{family}.rope.freq_base", 10000.0)),
        eos_ids=() if eos is None else (int(eos),),
    )


def _hf_name(name: str, path: Path) -> str:
    if name in TOP:
        return TOP[name]
    prefix, _, rest = name.partition(".")
    number, _, kind = rest.partition(".")
    if prefix != "blk" or kind not in TENSORS:
        raise ModelError(f"{path}: the tensor {name!r} is unknown; untail runs {', '.join(FAMILIES)}")
    return f"model.layers.{number}.{TENSORS[kind]}"


def _halves_in_order(values: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
