import json
import os

import pytest

from untail.errors import ConfigError
from untail.rewards import build_reward
from untail.tasks import Row, load_tasks, read_rows
from untail.tasks.reasoning_gym import ReasoningGymTask
from untail.tokenizer import Tokenizer
from untail.types import Prompt

ODD_DATA = ["rearc", "arc_1d", "knights_knaves", "course_schedule"]  # tuples and numpy values in their metadata
EVALUATED = ["countdown", "polynomial_multiplication", "puzzle24", "simple_integration"]
EVALUATED_LITERALS = ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"]


def rows_of(**fields: object) -> list[Row]:
    return read_rows({"name": "reasoning_gym", **fields})[0]


def test_rows_labels_and_the_default_reward() -> None:
    rows = rows_of(dataset="chain_sum", size=3, seed=5, params={"max_terms": 3})
    assert len(rows) == 3
    assert all(row.prompt == row.data["question"] and row.data["answer"] for row in rows)
    reward = {"name": "reasoning_gym", "dataset": "chain_sum", "params": {"max_terms": 3}}
    assert {(row.task, json.dumps(row.reward)) for row in rows} == {("chain_sum", json.dumps(reward))}


def test_the_right_answer_is_right_even_after_a_trip_through_json() -> None:
    names = ODD_DATA + EVALUATED + EVALUATED_LITERALS
    specs = [{"name": name, "weight": 1, "config": {}} for name in names]
    rows = rows_of(dataset="composite", size=40, seed=1, params={"datasets": specs})
    assert {row.data["metadata"]["source_dataset"] for row in rows} == set(names)
    reward = build_reward(rows[0].reward, "task.reward")
    reward.prepare()
    for row in rows:
        prompt = Prompt("p", row.task, "", (), json.loads(json.dumps(row.data)))
        assert reward.score(f"<answer>{row.data['answer']}</answer>", prompt) == 1.0, row.data


def test_rows_do_not_depend_on_the_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """word_ladder iterates over sets of words: with PYTHONHASHSEED=1 and 2 its own rows differ."""
    both = []
    for seed in ("1", "2"):
        monkeypatch.setitem(os.environ, "PYTHONHASHSEED", seed)
        both.append([row.data for row in rows_of(dataset="word_ladder", size=6, seed=7)])
    assert both[0] == both[1]


def test_puzzles_with_several_right_answers_may_come_twice(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [{"question": "Make 3 of 1 and 2.", "answer": answer, "metadata": {}} for answer in ("1+2", "2+1")]
    monkeypatch.setattr(ReasoningGymTask, "_items", lambda self: iter(items))
    tasks = load_tasks({"name": "reasoning_gym", "dataset": "countdown"}, tokenizer, None)
    assert len(tasks.prompts) == 1
    assert tasks.dropped == {"the same prompt as an earlier row": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dataset": "chain_sun"},
            r"task.dataset = 'chain_sun' is not a reasoning-gym dataset; did you mean 'chain_sum'",
        ),
        ({"dataset": "chain_sum", "params": {"max_term": 3}}, r"task.params.max_term .* did you mean 'max_terms'"),
        ({"dataset": "chain_sum", "size": 0}, r"task.size = 0 is not valid"),
    ],
)
def test_bad_tables(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(**fields)
