"""A Hugging Face model folder: config.json and safetensors, read lazily and written whole.

Written folders load in transformers: fused matrices are split, and the tokenizer goes along.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.names import split_out
from untail.engine.models.shape import Shape
from untail.errors import ModelError
from untail.tokenizer import Tokenizer


class FolderTensors(Mapping[str, Tensor]):
    """Every tensor of a folder's safetensors files by name, read from the file when it is asked for."""

    def __init__(self, folder: Path):
        self._file_of: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is not a readable safetensors file: {error}") from error
            self._file_of |= dict.fromkeys(file.keys(), file)

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


def read_shape(folder: Path) -> Shape:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        generation = folder / "generation_config.json"
        # Chat models name further stop ids only here (Llama 3's <|eot_id|>, Qwen's <|im_end|>).
        if generation.exists():
            config["eos_token_id"] = json.loads(generation.read_text()).get("eos_token_id", config.get("eos_token_id"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    return Shape.from_hf(config, str(folder))


def save_folder(model: Decoder, tokenizer: Tokenizer | None, folder: Path) -> None:
    """Write `folder` so that transformers and `load_model` read it back."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.shape.to_hf() | {"dtype": str(model.embed.dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: tensor.contiguous() for name, tensor in split_out(model)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer is not None:
        tokenizer.save(folder)
