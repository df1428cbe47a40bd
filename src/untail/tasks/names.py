"""What a task's name on the command line stands for: a registered task, a file, or a reasoning-gym dataset."""

from pathlib import Path
from typing import Any

from untail.errors import ConfigError, nearest
from untail.tasks.base import TASKS
from untail.tasks.file import SUFFIXES


def table_of(task: str) -> dict[str, Any]:
    """The task table for one word, in that order of precedence."""
    if task in TASKS.names():
        return {"name": task}
    if Path(task).suffix in SUFFIXES or Path(task).is_file():
        return {"name": "file", "path": task}
    datasets = _reasoning_gym_datasets()
    if task in datasets:
        return {"name": "reasoning_gym", "dataset": task}
    known = TASKS.names() + datasets
    hint = nearest(task, known) if datasets else f"{nearest(task, known)} (reasoning-gym is not installed)"
    raise ConfigError(f"{task!r} is neither a task, nor a .jsonl or .parquet file, nor a reasoning-gym dataset; {hint}")


def _reasoning_gym_datasets() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return []
    return list(DATASETS)
