"""reasoning-gym's own scorers.

The response's answer is what stands in its last <answer> tags, else its last line. A row carries the dataset's
`question`, `answer` and `metadata` (as `plain` data).

Some of these scorers pass the answer to Python's `eval`, or to sympy's `parse_expr`, which does the same: an answer
could run code in the worker and write its own score, and everyone's after it. Such an answer counts as none: for
these datasets it has to be a literal, or arithmetic with named mathematical functions (so the unevaluated
`Integral(...)`, which these scorers take for a solution, is none either). A test compares the two sets below with the
installed package.
"""

import ast
import dataclasses
import re
import traceback
from typing import Any

from pydantic import Field

from untail.config import Strict
from untail.errors import ConfigError, nearest
from untail.rewards.base import REWARDS, Reward
from untail.rewards.extract import last_line, tagged
from untail.rewards.sandbox.plain import from_plain
from untail.types import Prompt

EVALUATE_LITERAL = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
EVALUATE_EXPRESSION = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
_FUNCTIONS = "a?(?:sin|cos|tan|sec|csc|cot)h?|exp|log|ln|sqrt|Abs|pi|factorial|erf|Si|Ci|Ei|li"
_EXPRESSION = re.compile(rf"(?:\s|\d+\.?\d*|\.\d+|[-+*/^(),!=]|(?<![^\W\d])(?:{_FUNCTIONS}|[A-Za-z])(?![^\W\d]))*+")


@REWARDS.register("reasoning_gym")
class ReasoningGym(Reward):
    class Config(Strict):
        dataset: str
        params: dict[str, Any] = Field(default_factory=dict)

    config: Config
    needs = ("metadata",)
    truths = ()  # many puzzles have several right answers, and the row holds just one of them
    _dataset: Any

    def prepare(self) -> None:
        self._dataset = make_dataset(self.config.dataset, self.config.params, size=1, seed=0, where=self.where)

    def score(self, response: str, prompt: Prompt) -> float:
        metadata = from_plain(prompt.data["metadata"])
        answer: str | None = tagged(response)
        if answer is None:
            answer = last_line(response)
        if not harmless(answer, metadata.get("source_dataset", self.config.dataset)):
            answer = None
        entry = {"question": prompt.data.get("question"), "answer": prompt.data.get("answer"), "metadata": metadata}
        return self._dataset.score_answer(answer, entry)


def harmless(answer: str, dataset: str) -> bool:
    """Whether this dataset's scorer may read the answer: False if it would run it as a program."""
    if dataset in EVALUATE_EXPRESSION:
        return _EXPRESSION.fullmatch(answer) is not None
    if dataset in EVALUATE_LITERAL and "(" in answer:
        try:
            ast.literal_eval(answer.strip())
        except Exception:  # a dozen kinds, all of which mean: not a literal
            return False
    return True


def make_dataset(name: str, params: dict[str, Any], size: int, seed: int, where: str) -> Any:
    """The dataset; a `ConfigError` that names the nearest dataset or parameter if there is none such."""
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError:
        raise ConfigError(
            f"{where} needs the reasoning-gym package; install it with: pip install 'untail[tasks]'"
        ) from None
    if name not in DATASETS:
        raise ConfigError(f"{where}.dataset = {name!r} is not a reasoning-gym dataset; {nearest(name, list(DATASETS))}")
    known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("size", "seed")]
    for param in params:
        if param in ("size", "seed"):
            raise ConfigError(f"{where}.params.{param} is set beside the parameters: set {where}.{param}")
        if param not in known:
            raise ConfigError(f"{where}.params.{param} is not a parameter of {name!r}; {nearest(param, known)}")
    try:
        return create_dataset(name, size=size, seed=seed, **_as_specs(name, params))
    except Exception as error:  # its checks are asserts and whatever Python raises on a wrong type
        raise ConfigError(f"{where}.params is not valid for the dataset {name!r}: {_reason(error)}") from None


def _as_specs(name: str, params: dict[str, Any]) -> dict[str, Any]:
    if name != "composite":
        return params
    from reasoning_gym.composite import DatasetSpec

    return params | {"datasets": [DatasetSpec(**spec) for spec in params.get("datasets", [])]}


def _reason(error: Exception) -> str:
    """What an assertion without a message asserted; else what was raised."""
    if str(error):
        return str(error)
    return traceback.extract_tb(error.__traceback__)[-1].line or type(error).__name__
