import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from untail.errors import ConfigError, DataError
from untail.tasks import Row, load_tasks, read_rows

from .helpers import write

GSM8K = [
    {"question": "Natalia sold 48 clips and then half as many. How many?", "answer": "48/2 = <<48/2=24>>24\n#### 72"},
    {"question": "How much is 1,000 and 234?", "answer": "It is <<1000+234=1234>>1,234.\n#### 1,234"},
]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 7, "split": "train"},
}


def rows_of(table: dict[str, Any]) -> list[Row]:
    return read_rows(table)[0]


def test_gsm8k_as_it_is_published(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path / "gsm8k.jsonl", *GSM8K))
    assert [(row.prompt, row.data) for row in rows] == [(row["question"], {"answer": row["answer"]}) for row in GSM8K]
    assert {(row.task, row.reward["name"]) for row in rows} == {("gsm8k", "numeric")}


def test_verl_columns(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path / "train.jsonl", VERL))
    assert row.prompt == [{"role": "user", "content": "1+1?"}]
    assert row.data["answer"] == "2"
    assert row.data["extra_info"] == {"index": 7, "split": "train"}
    assert (row.task, row.reward) == ("openai/gsm8k", {"name": "numeric"})


def test_parquet_reads_as_jsonl_does(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([VERL]), tmp_path / "train.parquet")
    (from_parquet,) = rows_of({"name": "file", "path": str(tmp_path / "train.parquet")})
    (from_jsonl,) = rows_of(write(tmp_path / "train.jsonl", VERL))
    assert from_parquet.where == "train.parquet row 1"
    assert (from_parquet.prompt, from_parquet.data) == (from_jsonl.prompt, from_jsonl.data)


def test_parquet_values_that_json_lacks_become_text(tmp_path: Path) -> None:
    record = {"question": "When?", "answer": 1, "day": datetime.date(2026, 11, 15)}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / "a.parquet")
    (row,) = rows_of({"name": "file", "path": str(tmp_path / "a.parquet")})
    assert row.data == {"answer": 1, "day": "2026-11-15"}


def test_configured_columns_and_limit(tmp_path: Path) -> None:
    table = write(tmp_path / "a.jsonl", {"q": "1+1?", "a": "2", "prompt": "not this"}, {"q": "2+2?", "a": "4"})
    (row,) = rows_of(table | {"prompt_column": "q", "answer_column": "a", "limit": 1})
    assert (row.prompt, row.data) == ("1+1?", {"answer": "2", "prompt": "not this"})


def test_rows_with_tests_are_scored_by_them(tmp_path: Path) -> None:
    (row,) = rows_of(write(tmp_path / "code.jsonl", {"prompt": "Write f.", "tests": "assert f() == 1"}))
    assert (row.reward, row.data) == ({"name": "code"}, {"tests": "assert f() == 1"})


def test_a_reward_is_not_guessed_for_texts(tmp_path: Path) -> None:
    table = write(tmp_path / "a.jsonl", {"question": "1+1?", "answer": "2"}, {"question": "Colour?", "answer": "blue"})
    with pytest.raises(
        ConfigError, match=r"task.reward is missing, and a has an answer that is not a number \('blue'\)"
    ):
        rows_of(table)
    with pytest.raises(ConfigError, match=r"task.reward is missing, and b has no answers"):
        rows_of(write(tmp_path / "b.jsonl", {"question": "1+1?"}))


def test_blank_lines_are_passed_over_and_lines_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"question": "1+1?", "answer": 2}\n\n{"question": "2+2?", "answer": 4}\n')
    assert [row.where for row in rows_of({"name": "file", "path": str(path)})] == ["a.jsonl line 2", "a.jsonl line 4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a has no rows"),
        ('{"question": "1?", "answer": 1}\n{"question": ', r"a.jsonl line 2 is not valid JSON"),
        ("[1]\n", r"a.jsonl line 1 is not a JSON object but a list"),
        (
            '{"text": "1?", "answer": 1}',
            r"a.jsonl line 1 has none of the columns prompt, question, problem; it has: text",
        ),
        ('{"question": " ", "answer": 1}', r"line 1 has 'question' = ' ', which is neither a text nor a list"),
        ('{"question": 7, "answer": 1}', r"line 1 has 'question' = '7', which is neither"),
        ('{"prompt": [{"role": "user"}], "answer": 1}', r"line 1 has 'prompt' = .* with role and content"),
        ('{"prompt": "1?", "data": [1]}', r"line 1 has 'data' = '\[1\]', which is not a dict"),
        ('{"prompt": "1?", "data": {}, "reward": "exact"}', r"line 1 has 'reward' = 'exact', which is not a dict"),
    ],
)
def test_bad_files(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        rows_of({"name": "file", "path": str(tmp_path / "a.jsonl")})


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(DataError, match=r"a.jsonl line 1 is not valid JSON"):
        rows_of({"name": "file", "path": str(tmp_path / "a.jsonl")})


def test_unknown_columns(tmp_path: Path) -> None:
    table = write(tmp_path / "a.jsonl", {"question": "1?", "answer": 1})
    with pytest.raises(
        DataError, match=r"line 1 has no column 'qestion' \(task.prompt_column\); did you mean 'question'"
    ):
        rows_of(table | {"prompt_column": "qestion"})
    with pytest.raises(DataError, match=r"no column 'result' \(task.answer_column\); known: answer, question"):
        rows_of(table | {"answer_column": "result"})


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task.path = '.*none.jsonl' cannot be read: No such file"):
        rows_of({"name": "file", "path": str(tmp_path / "none.jsonl")})
    with pytest.raises(DataError, match=r"cannot be read: .*none.parquet"):
        rows_of({"name": "file", "path": str(tmp_path / "none.parquet")})
    with pytest.raises(ConfigError, match=r"task.path = '.*a.csv' is neither a .jsonl nor a .parquet file"):
        rows_of({"name": "file", "path": str(tmp_path / "a.csv")})
    (tmp_path / "a.parquet").write_text(json.dumps(VERL))
    with pytest.raises(DataError, match="is not a parquet file"):
        rows_of({"name": "file", "path": str(tmp_path / "a.parquet")})
    with pytest.raises(ConfigError, match=r"task.path is missing"):
        rows_of({"name": "file"})


def test_rewards_that_contradict_each_other(tmp_path: Path, tokenizer: Any) -> None:
    own = {"prompt": "1?", "data": {"answer": "1"}, "task": "t", "reward": {"name": "exact"}}
    table = write(tmp_path / "a.jsonl", own, own | {"prompt": "2?", "reward": {"name": "numeric"}})
    with pytest.raises(ConfigError, match=r"a.jsonl line 1 and a.jsonl line 2 belong to the same task 't'"):
        load_tasks(table, tokenizer, None)
    assert load_tasks(table | {"reward": {"name": "exact"}}, tokenizer, None).rewards == {"t": {"name": "exact"}}
