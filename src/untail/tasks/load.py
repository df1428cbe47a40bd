"""From a task's table to prompts a model can be asked.

Invariant: what is wrong with the data is found here, before anything is generated: each problem is one sentence that
names the row. Nothing is left out without being counted.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from untail.errors import ConfigError, DataError
from untail.rewards import Reward, build_reward
from untail.rewards.partial import build_partial
from untail.tasks.base import Row, build_task
from untail.tokenizer import Tokenizer
from untail.types import Prompt, prompt_id


@dataclass(frozen=True, slots=True)
class TaskSet:
    prompts: list[Prompt]
    rewards: dict[str, dict[str, Any]]  # task name -> reward table, as `Scorer` takes it
    dropped: dict[str, int]  # reason -> rows left out
    partials: dict[str, dict[str, Any]] = field(default_factory=dict)  # task name -> its partial score's table

    @property
    def notes(self) -> list[str]:
        return [f"{count} rows left out: {reason}" for reason, count in self.dropped.items()]


def load_tasks(
    table: dict[str, Any], tokenizer: Tokenizer, max_prompt_tokens: int | None, where: str = "task"
) -> TaskSet:
    """All prompts of the task, rendered by the tokenizer's chat template, each once, in the task's order."""
    rows, dropped = read_rows(table, where)
    rewards = _rewards(rows, where)
    _check_partials(rows, where)
    kept: dict[str, Row] = {}
    prompts: list[Prompt] = []
    for row in rows:
        _check_data(row, rewards[row.task])
        tokens = _tokens(row, tokenizer)
        if max_prompt_tokens is not None and len(tokens) > max_prompt_tokens:
            _refuse_or_count_too_long(row, len(tokens), max_prompt_tokens, dropped, where)
            continue
        prompt = Prompt(
            prompt_id(row.task, tokens), row.task, tokenizer.decode(tokens, skip_special=False), tokens, row.data
        )
        if prompt.id in kept:
            _check_same(kept[prompt.id], row, rewards[row.task])
            dropped["the same prompt as an earlier row"] += 1
            continue
        kept[prompt.id] = row
        prompts.append(prompt)
    if not prompts:
        raise DataError(f"no prompt of {where} is left; {'; '.join(TaskSet([], {}, dropped).notes)}")
    partials = {row.task: row.partial for row in rows if row.partial is not None}
    return TaskSet(prompts, {row.task: row.reward for row in rows}, dict(dropped), partials)


def _tokens(row: Row, tokenizer: Tokenizer) -> tuple[int, ...]:
    texts = [row.prompt] if isinstance(row.prompt, str) else [message["content"] for message in row.prompt]
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{row.where} has a prompt that is not valid Unicode ({error.reason}); mend the row") from None
    return tuple(tokenizer.chat(row.prompt))


def read_rows(table: dict[str, Any], where: str = "task") -> tuple[list[Row], Counter[str]]:
    """All rows of the task and what it left out by itself."""
    task = build_task(table, where)
    rows = list(task.rows())
    if not rows:
        raise DataError(f"{where} ({table['name']}) has no rows; give it at least one")
    return rows, task.dropped


def _rewards(rows: list[Row], where: str) -> dict[str, Reward]:
    """One reward per task name, its table checked."""
    first: dict[str, Row] = {}
    for row in rows:
        if first.setdefault(row.task, row).reward != row.reward:
            raise ConfigError(
                f"{first[row.task].where} and {row.where} belong to the same task {row.task!r} but have different "
                f"rewards; give one of them another label, or set {where}.reward for all"
            )
    return {name: build_reward(row.reward, f"{where}.reward") for name, row in first.items()}


def _check_partials(rows: list[Row], where: str) -> None:
    """One partial score per task name, its table checked."""
    first: dict[str, Row] = {}
    for row in rows:
        if row.task not in first:
            first[row.task] = row
            if row.partial is not None:
                build_partial(row.partial, f"{where}.partial")
        elif first[row.task].partial != row.partial:
            raise ConfigError(
                f"{first[row.task].where} and {row.where} belong to the same task {row.task!r} but have different "
                "partial scores; give one of them another label"
            )


def _check_data(row: Row, reward: Reward) -> None:
    for key in reward.needs:
        if row.data.get(key) in (None, "", []):
            raise DataError(
                f"{row.where} has no {key!r}, which the reward {row.reward['name']!r} needs; "
                "add it, remove the row, or choose another reward"
            )


def _check_same(earlier: Row, row: Row, reward: Reward) -> None:
    for key in reward.truths:
        if earlier.data.get(key) != row.data.get(key):
            raise DataError(
                f"{earlier.where} and {row.where} have the same prompt but different values of {key!r}: "
                f"{str(earlier.data.get(key))[:60]!r} and {str(row.data.get(key))[:60]!r}; remove one of them"
            )


def _refuse_or_count_too_long(row: Row, length: int, limit: int, dropped: Counter[str], where: str) -> None:
    if row.too_long == "error":
        raise DataError(
            f"{row.where} is a prompt of {length} tokens, but at most {limit} fit; "
            f"raise the limit, shorten it, or set {where}.too_long = 'drop'"
        )
    dropped[f"a prompt of more than {limit} tokens"] += 1
