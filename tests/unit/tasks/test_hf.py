import sys
from types import SimpleNamespace
from typing import Any

import pytest

from untail.errors import DataError, UserError
from untail.tasks import read_rows

TABLE = {"name": "hf", "path": "openai/gsm8k", "subset": "main", "split": "test"}


def hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_rows_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(path: str, name: str | None, split: str) -> list[dict[str, Any]]:
        asked.append((path, name, split))
        return [{"question": "1+1?", "answer": "#### 2"}, {"question": "2+2?", "answer": "#### 4"}]

    hub(monkeypatch, load_dataset)
    rows, _ = read_rows(TABLE | {"limit": 1})
    assert asked == [("openai/gsm8k", "main", "test")]
    assert [(row.prompt, row.data, row.task, row.where) for row in rows] == [
        ("1+1?", {"answer": "#### 2"}, "openai/gsm8k", "openai/gsm8k row 1")
    ]


def test_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub\nand a long story")

    hub(monkeypatch, load_dataset)
    message = r"task.path = 'openai/gsm8k' .* cannot be loaded: Couldn't reach the Hub; .* use the task 'file'"
    with pytest.raises(DataError, match=message):
        read_rows(TABLE)


def test_no_datasets_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="pip install datasets"):
        read_rows(TABLE)
