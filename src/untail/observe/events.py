"""The life of every trajectory, one JSON object a line, append-only.

Invariant: `events.jsonl` begins with a `run` event that carries the schema's version, and every figure of a run can be
computed from this file alone. `t` is the backend's clock in seconds since the run began, the time before a resume
included.

| event      | when                                | fields beyond `e`, `t`, `step` |
|---|---|---|
| run        | once, and at every resume           | schema, untail, threads, concurrency, recipe (resolved) |
| step       | a step begins                       | |
| start      | a trajectory gets a slot            | id, prompt |
| end        | it leaves its slot                  | id, tokens, prompt_tokens, end, versions (first, last), entropy |
| score      | its reward is known                 | id, reward, failure |
| rolled_out | the last group of the step is done  | |
| update     | the weights have changed            | the trainer's figures |
| done       | the step is over                    | |
| validation | held-out prompts were scored        | score, ci95, n, mean_len, score_failures |
"""

import json
import os
from pathlib import Path
from typing import Any

from untail.errors import UserError

SCHEMA = 1


class JsonLines:
    """An append-only file of JSON objects; a line is with the operating system when `write` returns."""

    def __init__(self, path: Path, keep: int | None = None):
        """`keep` bytes of an earlier run are kept, the rest is cut off."""
        self.path = path
        if keep is not None:
            self._cut_back(keep)
        self._file = path.open("ab", buffering=0)

    def _cut_back(self, keep: int) -> None:
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < keep:
            raise UserError(
                f"{self.path} has {size} bytes, but the checkpoint was written when it had {keep}: it was changed; "
                "restore it, or remove the newest folder in checkpoints/ to resume from the one before"
            )
        os.truncate(self.path, keep)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def write(self, row: dict[str, Any]) -> None:
        try:
            self._file.write((json.dumps(row) + "\n").encode())
        except OSError as error:
            raise self._sentence(error) from error

    def sync(self) -> None:
        """On the disk, not only with the operating system: before a checkpoint says how long the file is."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._sentence(error) from error

    def close(self) -> None:
        self._file.close()

    def _sentence(self, error: OSError) -> UserError:
        return UserError(
            f"cannot write {self.path}: {error.strerror}; what was written before is intact: make room, then --resume"
        )


def read_lines(path: Path, begin: int = 0) -> list[dict[str, Any]]:
    """All whole lines from byte `begin` on; a last line that a crash cut short is left out."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read().decode()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
