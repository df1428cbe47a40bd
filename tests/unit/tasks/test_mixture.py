from pathlib import Path
from typing import Any

import pytest

from untail.errors import ConfigError
from untail.tasks import load_tasks, read_rows
from untail.tokenizer import Tokenizer

from .helpers import write


def sums(path: Path, count: int, first: int = 0) -> dict[str, Any]:
    return write(path, *({"question": f"{n}+1?", "answer": n + 1} for n in range(first, first + count)))


def mixture(tmp_path: Path, **fields: Any) -> dict[str, Any]:
    easy = sums(tmp_path / "easy.jsonl", 30) | {"weight": 1}
    hard = sums(tmp_path / "hard.jsonl", 30, first=1000) | {"weight": 2, "reward": {"name": "exact"}}
    return {"name": "mixture", "tasks": [easy, hard], **fields}


def test_shares_follow_the_weights(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tasks = load_tasks(mixture(tmp_path), tokenizer, None)
    order = [prompt.task for prompt in tasks.prompts]
    assert (order.count("easy"), order.count("hard")) == (15, 30)
    assert order != sorted(order)
    assert tasks.rewards == {"easy": {"name": "numeric"}, "hard": {"name": "exact"}}
    assert tasks.dropped == {"beyond the share of task.tasks[0]": 15}


def test_each_task_keeps_its_order(tmp_path: Path) -> None:
    rows, _ = read_rows(mixture(tmp_path))
    assert [row.data["answer"] for row in rows if row.task == "easy"] == list(range(1, 16))


def test_the_order_is_the_seeds(tmp_path: Path) -> None:
    orders = [[row.task for row in read_rows(mixture(tmp_path, seed=seed))[0]] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_a_mixture_may_hold_a_mixture(tmp_path: Path) -> None:
    rows, dropped = read_rows({"name": "mixture", "tasks": [mixture(tmp_path), sums(tmp_path / "more.jsonl", 45)]})
    assert len(rows) == 90
    assert dropped == {"beyond the share of task.tasks[0].tasks[0]": 15}


@pytest.mark.parametrize("weight", [0, -1, "1", True, float("inf"), float("nan")])
def test_bad_weights(weight: Any, tmp_path: Path) -> None:
    part = sums(tmp_path / "a.jsonl", 3) | {"weight": weight}
    with pytest.raises(ConfigError, match=r"task.tasks\[0\].weight = .* is not a positive number"):
        read_rows({"name": "mixture", "tasks": [part]})


def test_a_share_of_nothing(tmp_path: Path) -> None:
    parts = [sums(tmp_path / "a.jsonl", 3) | {"weight": 1000}, sums(tmp_path / "b.jsonl", 3)]
    with pytest.raises(ConfigError, match=r"task.tasks\[1\] gets no row"):
        read_rows({"name": "mixture", "tasks": parts})


def test_errors_name_the_part(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'task.tasks\[0\].siez'"):
        read_rows({"name": "mixture", "tasks": [{"name": "reasoning_gym", "dataset": "chain_sum", "siez": 1}]})
    with pytest.raises(ConfigError, match=r"task.tasks"):
        read_rows({"name": "mixture", "tasks": []})
