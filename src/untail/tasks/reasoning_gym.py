"""reasoning-gym's datasets, by name: generated puzzles with scorers of their own (the default reward).

Invariant: the same table gives the same rows on every run. Some generators iterate over sets of strings, the order of
which changes with Python's hash seed; so the rows are made in a process with a fixed one (see `_reasoning_gym_rows`).
Items that some random draw made twice are left out by `load_tasks`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from untail.config import PositiveInt
from untail.errors import ConfigError
from untail.tasks.base import TASKS, Row, Task

HASH_SEED = "0"


@TASKS.register("reasoning_gym")
class ReasoningGymTask(Task):
    class Config(Task.Config):
        dataset: str  # "chain_sum", "countdown", ...
        size: PositiveInt = 512
        seed: int = 0
        params: dict[str, Any] = Field(default_factory=dict)  # the dataset's own

    config: Config

    def rows(self) -> Iterator[Row]:
        name, params = self.config.dataset, self.config.params
        reward = {"name": "reasoning_gym", "dataset": name} | ({"params": params} if params else {})
        for index, item in enumerate(self._items()):
            yield self.row(item["question"], item, f"{name} item {index}", name, reward)

    def _items(self) -> Iterator[dict[str, Any]]:
        request = self.config.model_dump(include={"dataset", "size", "seed", "params"}) | {"where": self.where}
        maker = subprocess.run(
            [sys.executable, "-P", "-m", "untail.tasks._reasoning_gym_rows"],
            input=json.dumps(request).encode(),
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": HASH_SEED, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if maker.returncode != 0:
            raise RuntimeError(
                f"generating {self.config.dataset} ended with {maker.returncode}: {maker.stderr.decode()}"
            )
        for line in maker.stdout.splitlines():
            item = json.loads(line)
            if "error" in item:
                raise ConfigError(item["error"])
            yield item
