"""From a model's name to a decoder with weights and its tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import FolderTensors, read_shape
from untail.engine.models.gguf_file import read_gguf
from untail.engine.models.names import check, copy_in
from untail.engine.models.shape import Shape
from untail.engine.models.sources import ModelFiles, find_model
from untail.errors import ConfigError, ModelError, WeightsError
from untail.tokenizer import Tokenizer


@dataclass
class LoadedModel:
    decoder: Decoder
    tokenizer: Tokenizer


def choose_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device = 'cuda', but torch sees no GPU here; use 'cpu' or 'auto'")
    return torch.device("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return getattr(torch, dtype)


def load_model(name: str, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    files = find_model(name)
    return LoadedModel(load_decoder(files, device, dtype), Tokenizer.load(files.folder, files.gguf))


def load_decoder(files: ModelFiles, device: str = "auto", dtype: str = "auto") -> Decoder:
    where = choose_device(device)
    shape, tensors = _read(files)
    decoder = Decoder(shape, where, choose_dtype(dtype, where))
    try:
        check(decoder, tensors)
    except WeightsError as error:
        raise ModelError(f"{files.folder}: {error}") from None
    copy_in(decoder, tensors)
    return decoder


def _read(files: ModelFiles) -> tuple[Shape, Mapping[str, Tensor]]:
    if files.gguf:
        return read_gguf(files.folder / files.gguf)
    return read_shape(files.folder), FolderTensors(files.folder)
