import subprocess
import sys
from pathlib import Path

import pytest

from untail.errors import ConfigError, DataError
from untail.tasks import load_tasks
from untail.tokenizer import Tokenizer
from untail.types import prompt_id

from .helpers import write

SUM = {"question": "1+1?", "answer": "2"}
OTHER_SUM = {"question": "2+2?", "answer": "4"}


def test_prompts_are_rendered_by_the_chat_template(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tasks = load_tasks(write(tmp_path / "sums.jsonl", SUM, OTHER_SUM), tokenizer, None)
    first = tasks.prompts[0]
    assert first.text == "<user>1+1?<assistant>"
    assert first.tokens == tuple(map(ord, first.text))
    assert first.id == prompt_id("sums", first.tokens)
    assert (first.task, first.data) == ("sums", {"answer": "2"})
    assert [prompt.data["answer"] for prompt in tasks.prompts] == ["2", "4"]
    assert tasks.rewards == {"sums": {"name": "numeric"}}
    assert (tasks.dropped, tasks.notes) == ({}, [])


def test_system_label_and_reward_of_the_recipe(tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = write(tmp_path / "sums.jsonl", SUM) | {"system": "Be brief.", "label": "easy", "reward": {"name": "exact"}}
    tasks = load_tasks(table, tokenizer, None)
    assert tasks.prompts[0].text == "<system>Be brief.<user>1+1?<assistant>"
    assert tasks.prompts[0].task == "easy"
    assert tasks.rewards == {"easy": {"name": "exact"}}


def test_a_second_system_message_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Hi."}, {"role": "user", "content": "1+1?"}]
    table = write(tmp_path / "sums.jsonl", {"prompt": messages, "answer": "2"})
    with pytest.raises(DataError, match=r"sums.jsonl line 1 has a system message already; .* unset task.system"):
        load_tasks(table | {"system": "Be brief."}, tokenizer, None)


def test_identical_rows_are_left_out_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tasks = load_tasks(write(tmp_path / "sums.jsonl", SUM, OTHER_SUM, SUM, SUM), tokenizer, None)
    assert [prompt.data["answer"] for prompt in tasks.prompts] == ["2", "4"]
    assert tasks.dropped == {"the same prompt as an earlier row": 2}
    assert tasks.notes == ["2 rows left out: the same prompt as an earlier row"]


def test_the_same_prompt_with_another_answer_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = write(tmp_path / "sums.jsonl", SUM, OTHER_SUM, SUM | {"answer": "3"})
    with pytest.raises(DataError, match=r"sums.jsonl line 1 and sums.jsonl line 3 have the same prompt .*'2' and '3'"):
        load_tasks(table, tokenizer, None)


@pytest.mark.parametrize(
    "row", [{"question": "3+3?"}, {"question": "3+3?", "answer": ""}, {"question": "?", "answer": None}]
)
def test_a_row_without_an_answer_is_refused(row: dict[str, object], tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = write(tmp_path / "sums.jsonl", SUM, row) | {"reward": {"name": "exact"}}
    with pytest.raises(DataError, match=r"sums.jsonl line 2 has no 'answer', which the reward 'exact' needs"):
        load_tasks(table, tokenizer, None)
    assert len(load_tasks(table | {"reward": {"name": "format"}}, tokenizer, None).prompts) == 2


def test_an_answer_of_zero_is_an_answer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert load_tasks(write(tmp_path / "a.jsonl", {"question": "0?", "answer": 0}), tokenizer, None).prompts


def test_a_prompt_that_does_not_fit(tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = write(tmp_path / "sums.jsonl", SUM, {"question": "1+" * 50 + "1?", "answer": "51"})
    limit = len("<user>1+1?<assistant>")
    with pytest.raises(DataError, match=rf"sums.jsonl line 2 is a prompt of 119 tokens, but at most {limit} fit"):
        load_tasks(table, tokenizer, limit)
    tasks = load_tasks(table | {"too_long": "drop"}, tokenizer, limit)
    assert len(tasks.prompts) == 1
    assert tasks.dropped == {f"a prompt of more than {limit} tokens": 1}


def test_nothing_left_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    table = write(tmp_path / "sums.jsonl", SUM) | {"too_long": "drop"}
    with pytest.raises(DataError, match="no prompt of task is left; 1 rows left out: a prompt of more than 3 tokens"):
        load_tasks(table, tokenizer, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "fil"}, r"unknown task 'fil'; did you mean 'file'"),
        ({"limt": 3}, r"unknown key 'task.limt'; did you mean 'limit'"),
        ({"too_long": "cut"}, r"task.too_long = 'cut' is not valid"),
        ({"reward": {"name": "exakt"}}, r"unknown reward 'exakt'; did you mean 'exact'"),
        ({"reward": {"nam": "exact"}}, r"task.reward has no name"),
    ],
)
def test_bad_tables(change: dict[str, object], message: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tasks(write(tmp_path / "sums.jsonl", SUM) | change, tokenizer, None)


def test_importing_tasks_brings_in_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'reasoning_gym', 'pyarrow', 'datasets', 'transformers'}"
    code = f"import sys, untail.tasks; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
