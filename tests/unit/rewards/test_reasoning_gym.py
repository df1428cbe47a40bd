import ast
from pathlib import Path

import pytest
import reasoning_gym

from untail.errors import ConfigError
from untail.rewards.reasoning_gym import EVALUATE_EXPRESSION, EVALUATE_LITERAL, harmless
from untail.rewards.sandbox.plain import to_plain

from .helpers import prompt, reward


def test_scores_the_tagged_answer_else_the_last_line() -> None:
    item = reasoning_gym.create_dataset("chain_sum", size=1, seed=1)[0]
    row = prompt(question=item["question"], answer=item["answer"], metadata=to_plain(item["metadata"]))
    check = reward("reasoning_gym", dataset="chain_sum")
    assert check.score(f"let me see\n<answer>{item['answer']}</answer> is it", row) == 1.0
    assert check.score(f"let me see\n{item['answer']}", row) == 1.0
    assert check.score(f"{item['answer']}\nor is it", row) < 1.0


def test_parameters_reach_the_scorer() -> None:
    """puzzle24 looks at its own configuration to tell whether the numbers are allowed."""
    row = prompt(question="?", answer="1*2*3*4", metadata={"source_dataset": "puzzle24"})
    assert reward("reasoning_gym", dataset="puzzle24").score("1*2*3*4", row) == 1.0
    assert reward("reasoning_gym", dataset="puzzle24", params={"min_value": 2}).score("1*2*3*4", row) < 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "chain_sun"}, r"task.reward.dataset = 'chain_sun' .* did you mean 'chain_sum'"),
        ({"dataset": "chain_sum", "params": {"max_term": 3}}, r"params.max_term .* did you mean 'max_terms'"),
        ({"dataset": "chain_sum", "params": {"min_terms": 9}}, r"params is not valid .*min_terms"),
        ({"dataset": "chain_sum", "params": {"min_terms": "x"}}, r"params is not valid"),
        ({"dataset": "sokoban", "params": {"max_w": 99}}, r"params is not valid .*self.max_w <= 20"),
        ({"dataset": "chain_sum", "params": {"seed": 9}}, r"params.seed .* set task.reward.seed"),
        ({"dataset": "composite"}, r"Must specify at least one dataset"),
    ],
)
def test_bad_tables(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward("reasoning_gym", **fields)


@pytest.mark.parametrize("answer", ["(1+2)*3/4", "6*x**3 - 2.5*X^2", "sin(x)*exp(2*x)/2 + C", "log(Abs(x))", "24 = 4!"])
def test_expressions_are_read(answer: str) -> None:
    assert harmless(answer, "countdown")


@pytest.mark.parametrize(
    "answer",
    [
        "eval(x)",
        "__import__('os')",
        "x.real",
        "(eval)(x)",
        "sin(eval)",
        "'1'",
        "S('1')",
        "lambda: 1",
        "[x]",
        "Integral(x)",
    ],
)
def test_expressions_that_could_do_more_than_compute_are_not(answer: str) -> None:
    assert not harmless(answer, "countdown")


def test_literals_are_read_and_calls_are_not() -> None:
    assert harmless("[['Q', '_'], ('_', 'Q')]", "n_queens")
    assert harmless("1 2 3", "spiral_matrix")
    assert not harmless("[print(1)]", "n_queens")
    assert harmless("a sentence (with a call)", "zebra_puzzles")


def test_an_answer_cannot_write_its_own_score() -> None:
    row = prompt(question="?", answer="1+2", metadata={"source_dataset": "countdown", "numbers": [1, 2], "target": 3})
    check = reward("reasoning_gym", dataset="countdown")
    assert check.score("1+2", row) == 1.0
    assert check.score("exec('import numpy; numpy.isclose = lambda *a, **k: True') or 1*2", row) < 1.0
    assert check.score("1*2", row) < 1.0


def test_every_scorer_that_evaluates_answers_is_known() -> None:
    """A tripwire for a new release: which modules hand a variable to something that runs it."""
    evaluators = {"eval", "exec", "parse_expr", "sympify", "S"}
    found = set()
    for path in Path(reasoning_gym.__file__).parent.rglob("*.py"):
        source = path.read_text()
        if not any(f"{name}(" in source for name in evaluators):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in evaluators:
                    found.add((path.stem, node.args[0].id))
    answers = {(name, "answer") for name in EVALUATE_EXPRESSION | EVALUATE_LITERAL}
    questions = {
        ("bitwise_arithmetic", "problem"),
        ("bitwise_arithmetic", "problem_str"),
        ("codeio", "full_code"),
        ("generators_50_99", "fraction"),
        ("propositional_logic", "expr"),  # a parser of its own by the same name
        ("propositional_logic", "left_expr"),
        ("propositional_logic", "right_expr"),
        ("propositional_logic", "sub_expr"),
    }
    assert found == answers | questions
