"""`untail tasks export`, by way of the command line's own entry."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from untail.cli.tasks import app
from untail.errors import ConfigError, UserError
from untail.tasks import load_tasks
from untail.tokenizer import Tokenizer

from .helpers import write


def export(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["export", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def same_after_export(table: dict[str, Any], out: Path, tokenizer: Tokenizer) -> None:
    before = load_tasks(table, tokenizer, None)
    after = load_tasks({"name": "file", "path": str(out)}, tokenizer, None)
    assert after.prompts == before.prompts
    assert after.rewards == before.rewards


def test_reasoning_gym_there_and_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out.jsonl"
    table = {"name": "reasoning_gym", "dataset": "rearc", "size": 3, "system": "Think."}
    assert export("rearc", "--set", "size=3", "--set", "system=Think.", "--out", str(out)) == {"path": str(out), "n": 3}
    same_after_export(table, out, tokenizer)


def test_a_file_there_and_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "1+1?"}]
    table = write(
        tmp_path / "in.jsonl", {"prompt": messages, "answer": "2", "level": 3}, {"prompt": "3?", "answer": "3"}
    )
    assert export(table["path"], "--out", str(tmp_path / "out.jsonl"))["n"] == 2
    same_after_export(table, tmp_path / "out.jsonl", tokenizer)


def test_a_mixture_there_and_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    first = write(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "2"})
    second = write(tmp_path / "b.jsonl", {"question": "Sky?", "answer": "blue"}) | {"reward": {"name": "exact"}}
    parts = [
        f'{{name="file", path="{first["path"]}"}}',
        f'{{name="file", path="{second["path"]}", reward={{name="exact"}}}}',
    ]
    tables = f"tasks=[{', '.join(parts)}]"
    assert export("mixture", "--set", tables, "--out", str(tmp_path / "out.jsonl"))["n"] == 2
    same_after_export({"name": "mixture", "tasks": [first, second]}, tmp_path / "out.jsonl", tokenizer)


def test_human_text_goes_to_standard_error(tmp_path: Path) -> None:
    table = write(tmp_path / "in.jsonl", {"prompt": "1?", "answer": "1"})
    result = CliRunner().invoke(app, ["export", table["path"], "--out", str(tmp_path / "out.jsonl")])
    assert (result.stdout, result.stderr) == ("", f"1 rows in {tmp_path / 'out.jsonl'}\n")


def test_wrong_input(tmp_path: Path) -> None:
    table = write(tmp_path / "in.jsonl", {"prompt": "1?", "answer": "1"})
    with pytest.raises(UserError, match=r"--out .*out.csv is not a .jsonl file"):
        export(table["path"], "--out", str(tmp_path / "out.csv"))
    with pytest.raises(UserError, match=r"--out .*out.jsonl cannot be written: No such file or directory"):
        export(table["path"], "--out", str(tmp_path / "none" / "out.jsonl"))
    with pytest.raises(ConfigError, match=r"unknown key 'task.limt'"):
        export(table["path"], "--set", "limt=1", "--out", str(tmp_path / "out.jsonl"))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write(tmp_path / "in.jsonl", {"prompt": "1?", "answer": "1"})
    out = tmp_path / "out.jsonl"
    out.write_text("before")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"--out .*out.jsonl cannot be written: No space left on device"):
        export(table["path"], "--out", str(out))
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
