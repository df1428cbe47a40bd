"""What several mechanisms of admission work out alike."""

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from untail.rollout.points import View
from untail.types import Prompt

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
T = TypeVar("T")


class PerStep(Generic[T]):
    """A value that takes all prompts to work out: worked out once in each step, when it is first asked for."""

    def __init__(self, work_out: Callable[[View], T]):
        self._work_out = work_out
        self._known: tuple[int, T] | None = None

    def at(self, view: View) -> T:
        if self._known is None or self._known[0] != view.step:
            self._known = view.step, self._work_out(view)
        return self._known[1]


class Replay(Generic[T]):
    """What can be read again and again from its start, and is worked out only as far as somebody reads."""

    def __init__(self, source: Iterator[T]):
        self._source = source
        self._known: list[T] = []

    def __iter__(self) -> Iterator[T]:
        for place in count():
            if place == len(self._known):
                self._known += islice(self._source, 1)
                if place == len(self._known):
                    return
            yield self._known[place]


def gain(p: float) -> float:
    """What a prompt with the success rate p teaches; largest at 1/3."""
    return p * (1 - p) ** 2


def success_rate(prompt: Prompt, view: View, least: int = 1) -> float | None:
    """The mean of Beta(successes + 1, failures + 1); None with fewer than `least` known rewards."""
    stats = view.history.stats(prompt.id)
    if stats is None or stats.successes + stats.failures < least:
        return None
    return (stats.successes + 1) / (stats.successes + stats.failures + 2)


def is_failing(prompt: Prompt, view: View, streak: int) -> bool:
    """Its last `streak` groups had no reward."""
    stats = view.history.stats(prompt.id)
    return stats is not None and stats.zero_streak >= streak
