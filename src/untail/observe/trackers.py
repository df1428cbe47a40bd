"""Metrics to TensorBoard, wandb and trackio: each is a function that takes a row.

TensorBoard files are written whenever tensorboard is installed; the others when `trackers` names them.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from untail.config import Recipe
from untail.errors import ConfigError

Tracker = Callable[[dict[str, Any]], None]


def refuse_if_missing(recipe: Recipe) -> None:
    for name in recipe.trackers:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"trackers names {name!r}, which is not installed; pip install {name}, or leave it out")


def make_trackers(recipe: Recipe, folder: Path) -> list[Tracker]:
    """Pre: none is missing."""
    names = list(dict.fromkeys(recipe.trackers))
    if "tensorboard" not in names and importlib.util.find_spec("tensorboard"):
        names.append("tensorboard")
    return [_tensorboard(folder) if name == "tensorboard" else _logger(name, recipe, folder) for name in names]


def flat(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a row, nested names joined with slashes."""
    numbers: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            numbers |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            numbers[prefix + key] = float(value)
    return numbers


def _tensorboard(folder: Path) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def track(row: dict[str, Any]) -> None:
        for name, value in flat(row).items():
            writer.add_scalar(name, value, row["step"])
        writer.flush()

    return track


def _logger(module: str, recipe: Recipe, folder: Path) -> Tracker:
    """wandb and trackio share one interface."""
    library = importlib.import_module(module)
    library.init(project="untail", name=folder.name, config=recipe.model_dump(mode="json"))
    return lambda row: library.log(flat(row), step=row["step"])
