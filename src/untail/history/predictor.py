"""How long a response will be, from the best source there is.

Invariant: own history comes before finished siblings, siblings before the task, and a prediction says where it is from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from untail.history.stats import PromptStats, TaskLengths, std_of
from untail.history.store import History
from untail.types import Prompt

Source = Literal["own", "siblings", "task", "unknown"]
FLOOR = 64
FULL_BUDGET = 8192  # lengths scale with the budget where it is smaller than this


@dataclass(frozen=True, slots=True)
class Prediction:
    """`n` finished lengths are behind it. With n = 0 an own history has lower bounds only, and `mean` is one itself.
    An unknown length has mean 0, std 0 and n = 0: ask `source`, not `mean`, whether there is a prediction."""

    mean: float
    std: float
    n: int
    source: Source

    @property
    def known_mean(self) -> float | None:
        return None if self.source == "unknown" else self.mean


UNKNOWN = Prediction(0.0, 0.0, 0, "unknown")


class Predictor:
    def __init__(self, history: History, budget: int):
        """`budget` is the longest response allowed."""
        self.history = history
        self.floor = max(1.0, FLOOR * min(1.0, budget / FULL_BUDGET))

    def predict(self, prompt: Prompt, siblings_done: Sequence[int] = ()) -> Prediction:
        """`siblings_done` are the lengths of finished members of the running group."""
        own = self.history.stats(prompt.id)
        if own is not None:
            return _from_own(own)
        if siblings_done:
            return _from_siblings(siblings_done)
        task = self.history.task_lengths(prompt.task)
        return UNKNOWN if task is None else _from_task(task)

    def remaining(self, prompt: Prompt, generated: int, siblings_done: Sequence[int] = ()) -> float:
        """Tokens still to come. What has outlived its estimate, or has none, gets the longer the longer it is already:
        that is how long tails behave."""
        mean = self.predict(prompt, siblings_done).mean
        return mean - generated if generated < mean else max(self.floor, 0.5 * generated)


def _from_own(own: PromptStats) -> Prediction:
    return Prediction(own.length_ema, own.length_std, own.finished, "own")


def _from_siblings(lengths: Sequence[int]) -> Prediction:
    """The longest so far: the short ones finish first, so that their mean would always be too low."""
    std = std_of(len(lengths), sum(lengths), sum(length * length for length in lengths))
    return Prediction(float(max(lengths)), std, len(lengths), "siblings")


def _from_task(lengths: TaskLengths) -> Prediction:
    """The median, and half the distance between the quantiles that lie one std apart from it in a normal law: a long
    tail moves neither."""
    spread = lengths.quantile(0.84) - lengths.quantile(0.16)
    return Prediction(float(lengths.quantile(0.5)), spread / 2, lengths.count, "task")
