"""A drafter as a folder that vLLM loads as an EAGLE drafter, and that a later run starts from (`start`).

config.json is Llama's with one layer; model.safetensors has what is the drafter's own: embedding and head are not in
it, so that vLLM shares the target's. Fused matrices are split. The names are those of vLLM's llama_eagle.py.

Invariant: a folder that was made for another model is refused. Sizes must be equal, and so must, nearly, a sample of
the target's embedding: training moves it by little, and those of two models have nothing to do with each other.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from untail.draft.adaptive.model import DraftModel, draft_shape
from untail.draft.adaptive.target import Target
from untail.engine.models.folder import FolderTensors
from untail.engine.models.names import Part
from untail.engine.models.shape import Shape
from untail.errors import ConfigError, ModelError

TARGET = "untail_target"  # the key in config.json
SAMPLE = 256  # numbers of the embedding
SAME = 0.5  # cosine of two samples of one model; of two models it is around 0, +- 1 / sqrt(SAMPLE)
SIZES = (
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rope_theta",
)
TARGETS_OWN = {"embed_tokens.weight", "lm_head.weight"}  # what other people's drafters may hold copies of


def parts(shape: Shape) -> dict[str, list[Part]]:
    """Our parameter -> the tensors it is stacked from, top to bottom."""
    layer, qkv = "layers.0", (("q", shape.q_size), ("k", shape.kv_size), ("v", shape.kv_size))
    return {
        "fc": [Part("fc.weight", shape.hidden)],
        "qkv": [Part(f"{layer}.self_attn.{x}_proj.weight", size) for x, size in qkv],
        "out": [Part(f"{layer}.self_attn.o_proj.weight", shape.hidden)],
        "post_norm": [Part(f"{layer}.post_attention_layernorm.weight", shape.hidden)],
        "gate_up": [Part(f"{layer}.mlp.{x}_proj.weight", shape.intermediate) for x in ("gate", "up")],
        "down": [Part(f"{layer}.mlp.down_proj.weight", shape.hidden)],
    }


def export(weights: dict[str, Tensor], target: Target, folder: Path) -> None:
    """`weights` are a `DraftModel`'s; they are written in the target's precision."""
    dtype = target.embed.dtype
    config = draft_shape(target.shape).to_hf() | {
        "architectures": ["EagleLlamaForCausalLM"],
        "dtype": str(dtype).removeprefix("torch."),
        TARGET: _identity(target),
    }
    tensors: dict[str, Tensor] = {}
    for ours, pieces in parts(target.shape).items():
        views = weights[ours].detach().to(dtype).split([part.rows for part in pieces])
        tensors |= {part.name: view.contiguous() for part, view in zip(pieces, views, strict=True)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def first_model(start: str | None, target: Target) -> tuple[DraftModel, bool]:
    """The drafter that a run begins with, in the target's precision, and whether it has learned anything yet."""
    model = DraftModel(target.shape, target.embed.device, target.embed.dtype).requires_grad_(False).initialise()
    if start is not None:
        model.load_state_dict(load(Path(start).expanduser(), target))
    return model, start is not None


def load(folder: Path, target: Target) -> dict[str, Tensor]:
    """The `DraftModel` weights in a folder, if they are for this target."""
    config = _read_config(folder)
    _refuse_other_model(config, target, folder)
    try:
        tensors = FolderTensors(folder)
    except ModelError as error:
        raise ConfigError(f"the drafter {folder} cannot be read: {error}") from None
    table, model = parts(target.shape), DraftModel(target.shape, "meta", torch.float32)
    columns = {ours: model.get_parameter(ours).shape[1:] for ours in table}
    expected = {part.name: (part.rows, *columns[ours]) for ours, pieces in table.items() for part in pieces}
    found = {name: tuple(tensors[name].shape) for name in tensors if name not in TARGETS_OWN}
    if found != expected:
        name = sorted(found.items() ^ expected.items())[0][0]
        raise ConfigError(
            f"the drafter {folder} has {found.get(name, 'nothing')} for tensor {name!r}, and this model's drafter "
            f"{expected.get(name, 'nothing')}; is it an EAGLE drafter of one layer for this model?"
        )
    return {ours: torch.cat([tensors[part.name] for part in pieces]) for ours, pieces in table.items()}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"draft.drafters.adaptive.start: {path} cannot be read as JSON ({error}); "
            "give the folder of an exported drafter"
        ) from None


def _refuse_other_model(config: dict[str, Any], target: Target, folder: Path) -> None:
    ours, identity = draft_shape(target.shape).to_hf(), config.get(TARGET)
    hint = "start from a drafter that was exported for this model, or from none"
    for name in SIZES:
        if config.get(name, ours[name]) != ours[name]:
            raise ConfigError(
                f"the drafter {folder} was made for {_named(identity)} with {name} {config[name]}, but "
                f"{_named(_identity(target))} has {ours[name]}; {hint}"
            )
    if identity is None:  # somebody else's: nothing more is known of its target
        return
    mine = _identity(target)
    alike = F.cosine_similarity(torch.tensor(identity["embedding"]), torch.tensor(mine["embedding"]), dim=0).item()
    if identity["layers"] != mine["layers"] or alike < SAME:
        raise ConfigError(
            f"the drafter {folder} was made for {_named(identity)}, and not for {_named(mine)}: their embeddings have "
            f"a cosine of {alike:.2f}; {hint}"
        )


def _identity(target: Target) -> dict[str, Any]:
    embed = target.embed.detach().flatten()
    chosen = torch.linspace(0, len(embed) - 1, SAMPLE, dtype=torch.float64).long().to(embed.device)
    sample = [float(f"{number:.4g}") for number in embed[chosen].tolist()]
    return {"family": target.shape.family, "layers": target.shape.layers, "embedding": sample}


def _named(identity: dict[str, Any] | None) -> str:
    return "a model" if identity is None else f"a {identity['family']} model of {identity['layers']} layers"
