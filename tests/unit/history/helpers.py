"""Records and prompts with only what a test is about."""

from typing import Any

from untail.history.stats import Record
from untail.history.store import History
from untail.types import Prompt


def record(length: int, prompt: str = "p", **fields: Any) -> Record:
    plain: dict[str, Any] = {"task": "sums", "step": 1, "version": 0, "end": "stop", "reward": 1.0, "entropy": 0.5}
    return Record(prompt=prompt, length=length, **{**plain, **fields})


def bound(length: int, **fields: Any) -> Record:
    return record(length, **{"is_bound": True, "end": "abort", "reward": None, **fields})


def history(*groups: list[Record], **options: Any) -> History:
    """In memory, one `add` per group."""
    made = History.open(None, "m", "t", **options)
    for group in groups:
        made.add(group)
    return made


def prompt(name: str = "p", task: str = "sums") -> Prompt:
    return Prompt(name, task, "", ())
