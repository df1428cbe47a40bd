"""Several tasks in fixed proportions.

Invariant: of the n rows, each task has its weight's share, rounded to whole rows; n is the largest for which every
task has enough. Which task's turn it is is drawn by the seed; each task's rows keep their order, name and reward.
Rows beyond a task's share are counted.
"""

import random
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.errors import ConfigError
from untail.tasks.base import TASKS, Row, Task, build_task


@TASKS.register("mixture")
class Mixture(Task):
    class Config(Strict):
        tasks: Annotated[list[dict[str, Any]], Field(min_length=1)]  # task tables, each with its `weight` (default 1)
        seed: int = 0

    config: Config

    def __init__(self, config: Config, where: str):
        super().__init__(config, where)
        self._parts = [_part(table, f"{where}.tasks[{index}]") for index, table in enumerate(config.tasks)]

    def rows(self) -> Iterator[Row]:
        rows = [list(task.rows()) for _, task in self._parts]
        total = sum(weight for weight, _ in self._parts)
        shares = [weight / total for weight, _ in self._parts]
        size = min(len(part) / share for part, share in zip(rows, shares, strict=True))
        counts = [min(round(size * share), len(part)) for part, share in zip(rows, shares, strict=True)]
        for index, (count, (_, task)) in enumerate(zip(counts, self._parts, strict=True)):
            if count == 0:
                raise ConfigError(
                    f"{task.where} gets no row: its share of the {sum(counts)} rows is less than one; "
                    "raise its weight or give the others more rows"
                )
            self.dropped.update(task.dropped)
            if count < len(rows[index]):
                self.dropped[f"beyond the share of {task.where}"] += len(rows[index]) - count
        turns = [index for index, count in enumerate(counts) for _ in range(count)]
        random.Random(self.config.seed).shuffle(turns)
        queues = [iter(part) for part in rows]
        for turn in turns:
            yield next(queues[turn])


def _part(table: dict[str, Any], where: str) -> tuple[float, Task]:
    rest = dict(table)
    weight = rest.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise ConfigError(f"{where}.weight = {weight!r} is not a positive number")
    return float(weight), build_task(rest, where)
