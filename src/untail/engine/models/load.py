"""From a model's name to a decoder with weights and its tokenizer."""

import os
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
from untail.errors import ModelError, WeightsError
from untail.notice import say_once
from untail.tokenizer import Tokenizer


@dataclass
class LoadedModel:
    decoder: Decoder
    tokenizer: Tokenizer


def choose_device(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        say_once("engine.device = 'cuda', but torch sees no GPU here: going on with the CPU")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


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
    kind = choose_dtype(dtype, where)
    refuse_if_too_heavy(shape, where, kind)
    decoder = Decoder(shape, where, kind)
    try:
        check(decoder, tensors)
    except WeightsError as error:
        raise ModelError(f"{files.folder}: {error}") from None
    copy_in(decoder, tensors)
    return decoder


def memory_of(device: torch.device) -> float:
    """Bytes that a device has; of a machine without GPUs, each core has its share."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1)


def refuse_if_too_heavy(shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
    """Weights that a GPU has no memory for. A CPU's memory is not ours to judge: it may swap."""
    if device.type != "cuda":
        return
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Decoder(shape, "meta", dtype).parameters())
    free = torch.cuda.mem_get_info(device)[0]
    if count * dtype.itemsize > free:
        smaller = "engine.dtype = 'bfloat16', " if dtype.itemsize > 2 and count * 2 < free else ""
        raise ModelError(
            f"the model has {count / 1e9:.3g} billion weights, {count * dtype.itemsize / 2**30:.3g} GiB in "
            f"{str(dtype).removeprefix('torch.')}, but {device} has {free / 2**30:.3g} GiB free; use {smaller}a model "
            f"of at most {free / dtype.itemsize / 1e9:.3g} billion weights, or engine.device = 'cpu'"
        )


def _read(files: ModelFiles) -> tuple[Shape, Mapping[str, Tensor]]:
    if files.gguf:
        return read_gguf(files.folder / files.gguf)
    return read_shape(files.folder), FolderTensors(files.folder)
