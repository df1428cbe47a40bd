"""Weight updates in place: checked as a whole, then written, never half-applied.

Invariant: parameters keep their addresses; the version only grows.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import FolderTensors
from untail.engine.models.names import check, copy_in
from untail.errors import WeightsError

Source = Mapping[str, Tensor] | Path | None
"""Hugging Face tensors by name, a folder of safetensors, or None: the shared parameters were already changed in
place."""


def update(decoder: Decoder, source: Source, current: int, version: int) -> None:
    if version <= current:
        raise WeightsError(f"version {version} is not newer than the engine's version {current}; versions only grow")
    if source is None:
        return
    tensors = FolderTensors(source) if isinstance(source, Path) else source
    check(decoder, tensors)
    copy_in(decoder, tensors)
