import random
import subprocess
import sys
from itertools import accumulate

import pytest

from untail.errors import ConfigError, DataError
from untail.rewards import build_reward
from untail.tasks import Row, arithmetic, load_tasks, read_rows
from untail.tasks.arithmetic import FEWEST_AND_MOST_TERMS, LARGEST_TOTAL, MIXTURE, Problem, draw_problem
from untail.tokenizer import Tokenizer
from untail.types import Prompt


def rows_of(**fields: object) -> list[Row]:
    return read_rows({"name": "arithmetic", **fields})[0]


def problems(count: int, seed: int = 0) -> list[Problem]:
    rng = random.Random(seed)
    return [draw_problem(rng, MIXTURE) for _ in range(count)]


def test_a_row_holds_the_answer_and_how_hard_it_is() -> None:
    for row in rows_of(size=50):
        assert isinstance(row.prompt, str)
        assert str(eval(row.prompt.removesuffix("=?"))) == row.data["answer"]
        fewest, most = FEWEST_AND_MOST_TERMS[row.data["difficulty"]]
        assert fewest <= row.data["terms"] <= most
        assert (row.task, row.reward) == ("arithmetic", {"name": "exact"})


def test_a_worked_solution_is_scored_by_its_last_line() -> None:
    row = rows_of(size=1)[0]
    reward = build_reward(row.reward, "task.reward")
    prompt = Prompt("p", row.task, "", (), row.data)
    assert reward.score(f"1+2=3\n#### {row.data['answer']}", prompt) == 1.0
    assert reward.score(f"#### {row.data['answer']}1", prompt) == 0.0
    assert reward.score(f"1+2={row.data['answer']}\nwait\n1+2={row.data['answer']}", prompt) == 0.0  # a loop, cut


def test_the_same_table_gives_the_same_rows_and_another_seed_others() -> None:
    assert rows_of(size=40, seed=3) == rows_of(size=40, seed=3)
    assert [row.prompt for row in rows_of(size=40, seed=3)] != [row.prompt for row in rows_of(size=40, seed=4)]
    assert rows_of(size=40) == rows_of(size=80)[:40]


def test_totals_stay_in_range_and_terms_differ() -> None:
    for problem in problems(500):
        assert all(0 <= total <= LARGEST_TOTAL for total in accumulate(problem.terms))
        assert len(set(map(abs, problem.terms))) == len(problem.terms) >= 3


def test_the_splits_never_meet_whatever_the_seeds_and_the_order_of_terms(tokenizer: Tokenizer) -> None:
    train = {row.prompt for seed in range(3) for row in rows_of(size=2000, seed=seed, mixture={1: 1, 2: 1})}
    evaluation = {
        row.prompt for seed in range(3) for row in rows_of(size=600, seed=seed, split="eval", mixture={1: 1, 2: 1})
    }
    assert train.isdisjoint(evaluation)
    for problem in problems(200):
        turned = Problem(tuple(reversed(problem.terms)), problem.difficulty)
        assert turned.split == problem.split
    held_out = sum(problem.split == "eval" for problem in problems(3000))
    assert 0.08 < held_out / 3000 < 0.12
    sets = [load_tasks({"name": "arithmetic", "split": split}, tokenizer, None) for split in ("train", "eval")]
    ids = [{prompt.id for prompt in tasks.prompts} for tasks in sets]
    assert [len(one) for one in ids] == [512, 512]
    assert ids[0].isdisjoint(ids[1])


def test_no_problem_comes_twice() -> None:
    prompts = [row.prompt for row in rows_of(size=3000, mixture={1: 1})]
    assert len(set(prompts)) == 3000


def test_a_mixture_gives_its_difficulties_and_no_other() -> None:
    easy = rows_of(size=200, mixture={"1": 3, "2": 1})  # keys as TOML has them
    counts = {difficulty: sum(row.data["difficulty"] == difficulty for row in easy) for difficulty in range(1, 6)}
    assert counts[1] > counts[2] > 0 == counts[3] == counts[4] == counts[5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixture": {}}, "task.mixture is empty"),
        ({"mixture": {7: 1.0}}, "task.mixture has the difficulty 7; known: 1, 2, 3, 4, 5"),
        ({"mixture": {1: 0.0}}, "task.mixture.1 = 0.0"),
        ({"size": 0}, "task.size = 0"),
        ({"split": "test"}, "task.split = 'test'"),
        ({"digits": 3}, "unknown key 'task.digits'"),
    ],
)
def test_bad_tables_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(**fields)


def test_more_problems_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "VAIN_DRAWS", 50)
    with pytest.raises(DataError, match=r"task.size = 100000, but the eval split of this mixture has only about \d+"):
        rows_of(size=100000, split="eval", mixture={1: 1.0})


def test_it_needs_neither_torch_nor_transformers() -> None:
    code = "import sys, untail.tasks.arithmetic; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
