"""The life of every trajectory, one JSON object a line, append-only.

Invariant: `events.jsonl` begins with a `run` event that carries the schema's version, and every figure of a run can be
computed from this file alone. Times are seconds on the backend's clock since the run began.

| event      | when                                | fields beyond `e`, `t`, `step` |
|---|---|---|
| run        | once, and at every resume           | schema, untail, recipe, concurrency |
| step       | a step begins                       | |
| start      | a trajectory gets a slot            | id, prompt |
| end        | it leaves its slot                  | id, tokens, prompt_tokens, end, versions (first, last), entropy |
| score      | its reward is known                 | id, reward, failure |
| rolled_out | the last group of the step is done  | |
| update     | the weights have changed            | the trainer's figures |
| done       | the step is over                    | |
| validation | held-out prompts were scored        | score, ci95, n, mean_len |
"""

import json
from pathlib import Path
from typing import Any, TextIO

from untail.errors import UserError

SCHEMA = 1


class JsonLines:
    """An append-only file of JSON objects, flushed line by line."""

    def __init__(self, path: Path, keep: int | None = None):
        """`keep` bytes of an earlier run are kept, the rest is cut off."""
        self.path = path
        if keep is not None:
            with path.open("r+b") as file:
                file.truncate(keep)
        self._file: TextIO = path.open("a", encoding="utf-8")

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, row: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"cannot write {self.path}: {error.strerror}; what was written before is intact: "
                "make room, then --resume"
            ) from error

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, begin: int = 0) -> list[dict[str, Any]]:
    """All whole lines from byte `begin` on; a last line that a crash cut short is left out."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read().decode()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
