"""What follows from records of responses: per prompt its lengths and successes, per task its lengths.

Invariant: the same groups of records in the same order give the same figures to the last bit.

- The records of one prompt in one `add` are a *group*. The EMA of the length takes one group's mean at a time, each new
  one with weight 0.5. Per response it would keep little but the last two or three of a group that arrives at once,
  and which those are is an accident.
- The length of a response that was stopped or cancelled (`is_bound`) is a lower bound. It counts as itself where it
  exceeds the estimate (the mean of its group's finished siblings or, without any, the EMA so far) and as the estimate
  elsewhere; so it may raise the EMA and never lowers it. It may raise the maximum, and the standard deviation and the
  task's quantiles leave it out.
- A reward above 0 is a success, any other a failure; one that is unknown (None) is neither. A group in which no reward
  is known leaves the zero-reward streak as it is.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

EMA_WEIGHT = 0.5


@dataclass(slots=True)
class Record:
    """One response. `length` counts model tokens; `end` is why it ended. With `is_bound` it was stopped or cancelled,
    or cut at a budget that other responses of its prompt need not have: it might have become longer. One that reached
    the longest response allowed is no bound, for nothing can be longer."""

    prompt: str  # its id
    task: str
    step: int
    version: int
    length: int
    end: str
    reward: float | None  # None: not known, also where its scorer failed
    entropy: float | None = None
    is_bound: bool = False
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptStats:
    """What is known about a prompt. `count` is of all records, `finished` of those whose whole length is known: with 0
    of them `length_ema` is itself a lower bound."""

    count: int
    finished: int
    length_ema: float
    length_std: float  # of the finished; 0 with fewer than two
    length_max: int
    successes: int
    failures: int
    zero_streak: int  # groups in a row, up to the last, without a reward above 0
    last_step: int


class TaskLengths:
    """All finished lengths of a task, as a count per length: exact, and no larger than the longest response."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: Counter[int] = Counter()
        self._order: tuple[list[int], list[int]] | None = None  # lengths ascending, and how many are up to each

    def take(self, lengths: Collection[int]) -> None:
        self.count += len(lengths)
        self._counts.update(lengths)
        self._order = None

    def quantile(self, share: float) -> int:
        """The shortest length that at least `share` of all do not exceed. Pre: count > 0, 0 <= share <= 1."""
        if self._order is None:
            lengths = sorted(self._counts)
            self._order = lengths, list(accumulate(self._counts[length] for length in lengths))
        lengths, ranks = self._order
        return lengths[bisect_left(ranks, max(1, math.ceil(share * ranks[-1])))]


@dataclass(slots=True)
class Tally:
    """A prompt's statistics on the way. Sums are of whole numbers, and so exact."""

    count: int = 0
    finished: int = 0
    total: int = 0
    squares: int = 0
    longest: int = 0
    ema: float = 0.0
    successes: int = 0
    failures: int = 0
    streak: int = 0
    last_step: int = 0

    def take(self, group: Sequence[Record]) -> None:
        self._take_lengths([r.length for r in group if not r.is_bound], [r.length for r in group if r.is_bound])
        self._take_rewards([r.reward for r in group if r.reward is not None])
        self.count += len(group)
        self.last_step = max(self.last_step, max(r.step for r in group))

    def _take_lengths(self, lengths: list[int], bounds: list[int]) -> None:
        estimate = sum(lengths) / len(lengths) if lengths else self.ema
        excess = sum(bound - estimate for bound in bounds if bound > estimate)
        mean = estimate + excess / (len(lengths) + len(bounds))
        self.ema = self.ema + EMA_WEIGHT * (mean - self.ema) if self.count else mean
        self.finished += len(lengths)
        self.total += sum(lengths)
        self.squares += sum(length * length for length in lengths)
        self.longest = max(self.longest, *lengths, *bounds)

    def _take_rewards(self, rewards: list[float]) -> None:
        successes = sum(reward > 0 for reward in rewards)
        self.successes += successes
        self.failures += len(rewards) - successes
        if rewards:
            self.streak = 0 if successes else self.streak + 1

    def stats(self) -> PromptStats:
        return PromptStats(
            count=self.count,
            finished=self.finished,
            length_ema=self.ema,
            length_std=std_of(self.finished, self.total, self.squares),
            length_max=self.longest,
            successes=self.successes,
            failures=self.failures,
            zero_streak=self.streak,
            last_step=self.last_step,
        )


def std_of(n: int, total: int, squares: int) -> float:
    """The standard deviation of a sample of n numbers with that sum, and that sum of squares; 0 with fewer than two."""
    return math.sqrt((n * squares - total**2) / (n * (n - 1))) if n > 1 else 0.0
