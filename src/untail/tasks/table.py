"""Rows out of records, the columns of which are known, configured or guessed.

Invariant: a column that the recipe names has to be there; one that it does not name is looked for under the usual
names. Three forms are recognised, record by record: our own (`prompt`, `data`, `task`, `reward`: what `untail tasks
export` writes), verl's (`prompt` as messages, `reward_model.ground_truth`, `data_source`), and plain columns. All
other columns go to the scorer.
"""

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

from untail.config import PositiveInt
from untail.errors import ConfigError, DataError, nearest
from untail.rewards.extract import truth
from untail.rewards.numeric import is_number
from untail.tasks.base import Message, Row, Task

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "ground_truth")
OWN_COLUMNS = {"prompt", "data", "task", "reward"}

Record = dict[str, Any]


class TableTask(Task):
    """A task over records; a subclass says where they come from."""

    class Config(Task.Config):
        prompt_column: str | None = None  # unset: prompt, question or problem
        answer_column: str | None = None  # unset: answer or ground_truth
        limit: PositiveInt | None = None  # the first rows only

    config: Config

    @property
    @abstractmethod
    def source(self) -> str:
        """What is read, for messages and as the tasks' default label."""

    @abstractmethod
    def records(self) -> Iterator[tuple[str, Record]]:
        """Each record with the place it stands at."""

    def rows(self) -> Iterator[Row]:
        found = [(where, *self._read(where, record)) for where, record in islice(self.records(), self.config.limit)]
        if not found:
            raise DataError(f"{self.source} has no rows; give {self.where} a file with at least one")
        default = None
        if self.config.reward is None and any(own.get("reward") is None for _, _, _, own in found):
            default = self._default_reward([data for _, _, data, _ in found])
        for where, prompt, data, own in found:
            yield self.row(prompt, data, where, own.get("task") or self.source, own.get("reward") or default)

    def _read(self, where: str, record: Record) -> tuple[str | list[Message], Record, Record]:
        """The prompt, the data for the scorer, and the record's own `task` and `reward` if it has them."""
        self._check_columns(where, record)
        guessed = self.config.prompt_column is None and self.config.answer_column is None
        if guessed and "data" in record and set(record) <= OWN_COLUMNS:
            return _prompt(where, "prompt", record.get("prompt")), _own_data(where, record), record
        prompt_column = self.config.prompt_column or _first(PROMPT_COLUMNS, record)
        if prompt_column is None:
            raise DataError(
                f"{where} has none of the columns {', '.join(PROMPT_COLUMNS)}; "
                f"it has: {', '.join(record)}; set {self.where}.prompt_column"
            )
        prompt = _prompt(where, prompt_column, record[prompt_column])
        data = {key: value for key, value in record.items() if key != prompt_column}
        answer_column = self.config.answer_column or _first(ANSWER_COLUMNS, data)
        if answer_column is not None:
            data["answer"] = data.pop(answer_column)
        elif isinstance(data.get("reward_model"), dict):
            data["answer"] = data["reward_model"].get("ground_truth")
        return prompt, data, {"task": _label(data)}

    def _check_columns(self, where: str, record: Record) -> None:
        for field in ("prompt_column", "answer_column"):
            column = getattr(self.config, field)
            if column is not None and column not in record:
                raise DataError(
                    f"{where} has no column {column!r} ({self.where}.{field}); {nearest(column, list(record))}"
                )

    def _default_reward(self, data: list[Record]) -> dict[str, Any]:
        """`code` for rows with tests, `numeric` where every answer is a number; anything else the recipe has to say."""
        if all(row.get("tests") for row in data):
            return {"name": "code"}
        answers = [truth(row["answer"]) for row in data if row.get("answer") is not None]
        other = next((answer for answer in answers if not is_number(answer)), None)
        if answers and other is None:
            return {"name": "numeric"}
        found = f"an answer that is not a number ({other[:60]!r})" if other is not None else "no answers"
        raise ConfigError(
            f"{self.where}.reward is missing, and {self.source} has {found}; set {self.where}.reward.name, "
            "for instance to 'exact' or 'math_verify'"
        )


def _first(names: tuple[str, ...], record: Record) -> str | None:
    return next((name for name in names if name in record), None)


def _label(data: Record) -> str | None:
    source = data.get("data_source")
    return source if isinstance(source, str) and source else None


def _own_data(where: str, record: Record) -> Record:
    for key, kind in (("data", dict), ("task", str), ("reward", dict)):
        if record.get(key) is not None and not isinstance(record[key], kind):
            raise DataError(f"{where} has {key!r} = {str(record[key])[:60]!r}, which is not a {kind.__name__}")
    return record["data"] or {}


def _prompt(where: str, column: str, prompt: Any) -> str | list[Message]:
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if isinstance(prompt, list) and prompt and all(map(_is_message, prompt)):
        return [{"role": message["role"], "content": message["content"]} for message in prompt]
    raise DataError(
        f"{where} has {column!r} = {str(prompt)[:60]!r}, which is neither a text nor a list of messages "
        "with role and content"
    )


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
