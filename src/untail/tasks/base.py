"""What a task is: rows, each a prompt with what its scorer needs to know.

Invariant: a row's `data` is plain JSON and its `task` and `reward` are settled, so that a row can be written to a
file and read back as the same row. Building a task checks its table; reading files, generating and importing happen
in `rows`.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from untail.config import Strict
from untail.errors import ConfigError, DataError
from untail.registry import Registry

Message = dict[str, str]
TooLong = Literal["error", "drop"]


@dataclass(frozen=True, slots=True)
class Row:
    prompt: str | list[Message]
    data: dict[str, Any]
    task: str
    reward: dict[str, Any]  # the raw table
    where: str  # how an error message names the row: "train.jsonl line 3"
    too_long: TooLong = "error"
    partial: dict[str, Any] | None = None  # the raw table of its partial score, if it has one


class Task(ABC):
    class Config(Strict):
        label: str | None = None  # the task's name in prompts, events and rewards; a task has a default of its own
        system: str | None = None  # a system message before every prompt
        too_long: TooLong = "error"  # what to do with a prompt that does not fit
        reward: dict[str, Any] | None = None  # a reward's table; most tasks have a default of their own
        partial: dict[str, Any] | None = None  # a partial score's table

    def __init__(self, config: Any, where: str):
        self.config = config
        self.where = where
        self.dropped: Counter[str] = Counter()  # what `rows` left out, by reason

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All rows in a fixed order: the same table gives the same rows, over runs and machines."""

    def row(self, prompt: str | list[Message], data: dict[str, Any], where: str, label: str, reward: Any = None) -> Row:
        """A row with this task's system message, and with its label and reward where the recipe sets them."""
        reward = self.config.reward or reward
        if reward is None:
            raise ConfigError(f"{self.where}.reward is missing; set {self.where}.reward.name, for instance to 'exact'")
        prompt = self._with_system(prompt, where)
        config = self.config
        return Row(prompt, data, config.label or label, reward, where, config.too_long, config.partial)

    def _with_system(self, prompt: str | list[Message], where: str) -> str | list[Message]:
        if self.config.system is None:
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if messages[0]["role"] == "system":
            raise DataError(f"{where} has a system message already; remove it, or unset {self.where}.system")
        return [{"role": "system", "content": self.config.system}, *messages]


TASKS: Registry[Task] = Registry("task")


def build_task(table: dict[str, Any], where: str) -> Task:
    return TASKS.build(table, where, where)
