"""Our parameter names and Hugging Face's: one table for loading, updating and exporting.

Invariant: each of our parameters is the concatenation, along its rows, of one or more Hugging Face tensors. Nothing is
overwritten before every name and every size has been checked.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Shape
from untail.errors import WeightsError


class Part(NamedTuple):
    name: str  # Hugging Face's name
    rows: int


def parts(shape: Shape) -> dict[str, list[Part]]:
    """Our parameter -> the Hugging Face tensors it is stacked from, top to bottom."""
    qkv = (("q", shape.q_size), ("k", shape.kv_size), ("v", shape.kv_size))
    table = {
        "embed": [Part("model.embed_tokens.weight", shape.vocab)],
        "norm": [Part("model.norm.weight", shape.hidden)],
    }
    if not shape.tied:
        table["head"] = [Part("lm_head.weight", shape.vocab)]
    for number in range(shape.layers):
        ours, theirs = f"layers.{number}", f"model.layers.{number}"
        table |= {
            f"{ours}.input_norm": [Part(f"{theirs}.input_layernorm.weight", shape.hidden)],
            f"{ours}.qkv": [Part(f"{theirs}.self_attn.{x}_proj.weight", size) for x, size in qkv],
            f"{ours}.out": [Part(f"{theirs}.self_attn.o_proj.weight", shape.hidden)],
            f"{ours}.post_norm": [Part(f"{theirs}.post_attention_layernorm.weight", shape.hidden)],
            f"{ours}.gate_up": [Part(f"{theirs}.mlp.{x}_proj.weight", shape.intermediate) for x in ("gate", "up")],
            f"{ours}.down": [Part(f"{theirs}.mlp.down_proj.weight", shape.hidden)],
        }
        if shape.qkv_bias:
            table[f"{ours}.qkv_bias"] = [Part(f"{theirs}.self_attn.{x}_proj.bias", size) for x, size in qkv]
        if shape.qk_norm:
            table[f"{ours}.q_norm"] = [Part(f"{theirs}.self_attn.q_norm.weight", shape.head_dim)]
            table[f"{ours}.k_norm"] = [Part(f"{theirs}.self_attn.k_norm.weight", shape.head_dim)]
    return table


def check(model: Decoder, source: Mapping[str, Tensor]) -> None:
    """Refuse a source with a tensor missing, misshapen, unknown, or not finite. Reads only."""
    expected: dict[str, tuple[int, ...]] = {}
    for ours, pieces in parts(model.shape).items():
        columns = model.get_parameter(ours).shape[1:]
        expected |= {part.name: (part.rows, *columns) for part in pieces}
    for name, size in expected.items():
        if name not in source:
            raise WeightsError(f"tensor {name!r} is missing; a weight update must hold all {len(expected)} tensors")
        tensor = source[name]
        if tuple(tensor.shape) != size:
            raise WeightsError(f"tensor {name!r} has shape {tuple(tensor.shape)}, but the model needs {size}")
        if not torch.isfinite(tensor).all():
            raise WeightsError(f"tensor {name!r} holds values that are not finite; the update was refused")
    harmless = {"lm_head.weight"} if model.shape.tied else set()
    for name in source:
        if name not in expected and name not in harmless and not name.endswith("rotary_emb.inv_freq"):
            raise WeightsError(f"tensor {name!r} is unknown to this {model.shape.family} model")


@torch.no_grad()
def copy_in(model: Decoder, source: Mapping[str, Tensor]) -> None:
    """Overwrite the model's parameters in place, at their addresses. Call `check` first."""
    for ours, pieces in parts(model.shape).items():
        row, parameter = 0, model.get_parameter(ours)
        for part in pieces:
            parameter[row : row + part.rows].copy_(source[part.name])
            row += part.rows


def split_out(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's name and a view for each of its tensors."""
    for ours, pieces in parts(model.shape).items():
        views = model.get_parameter(ours).detach().split([part.rows for part in pieces])
        yield from zip((part.name for part in pieces), views, strict=True)
