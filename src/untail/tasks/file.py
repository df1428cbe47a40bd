"""Rows of a local file: .jsonl or .parquet, by extension. See `table` for the columns it understands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from untail.errors import ConfigError, DataError, UserError
from untail.tasks.base import TASKS
from untail.tasks.table import Record, TableTask

SUFFIXES = (".jsonl", ".parquet")


@TASKS.register("file")
class FileTask(TableTask):
    class Config(TableTask.Config):
        path: Path

    config: Config

    @property
    def source(self) -> str:
        return self.config.path.stem

    def records(self) -> Iterator[tuple[str, Record]]:
        path = self.config.path
        if path.suffix not in SUFFIXES:
            raise ConfigError(
                f"{self.where}.path = '{path}' is neither a .jsonl nor a .parquet file; convert it to one"
            )
        try:
            yield from _read_jsonl(path) if path.suffix == ".jsonl" else _read_parquet(path)
        except OSError as error:
            raise DataError(f"{self.where}.path = '{path}' cannot be read: {error.strerror or error}") from None


def _read_jsonl(path: Path) -> Iterator[tuple[str, Record]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path.name} line {number}"
            if not line.strip():
                continue
            try:
                record: Any = json.loads(line)
            except ValueError as error:  # also bytes that are not UTF-8
                raise DataError(f"{where} is not valid JSON ({error}); mend or remove it") from None
            if not isinstance(record, dict):
                raise DataError(f"{where} is not a JSON object but a {type(record).__name__}; mend or remove it")
            yield where, record


def _read_parquet(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("reading .parquet needs pyarrow; install it with: pip install 'untail[tasks]'") from None
    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield f"{path.name} row {number}", as_json(record)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a parquet file that pyarrow can read: {error}") from None


def as_json(record: dict[str, Any]) -> Record:
    """Values that JSON does not have (dates, decimals, bytes) become text."""
    return json.loads(json.dumps(record, default=str))
