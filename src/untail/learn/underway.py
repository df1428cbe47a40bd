"""An update in the making: what its groups, which may come in portions, have come to so far.

Invariant: nothing in here moves a weight. Of an optimizer step the gradient itself is with the optimizer, and belongs
to exactly the passes in `Gathered.micros`: when the optimizer is made to forget it, they have to be made again.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from untail.learn.pack import MicroBatch
from untail.learn.tally import Tally


@dataclass(slots=True)
class Minibatch:
    """Samples of one optimizer step: their passes, and their part of what its loss is divided by."""

    micros: list[MicroBatch]
    divisor: float = 0.0


@dataclass(slots=True)
class Gathered:
    """What the passes of one optimizer step add up to so far, before it is divided."""

    micros: list[MicroBatch] = field(default_factory=list)
    divisor: float = 0.0
    losses: list[Tensor] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    heard: set[str] = field(default_factory=set)  # trajectories whose hidden states somebody was told

    @property
    def loss(self) -> Tensor:
        """Pre: there was a pass."""
        return torch.stack(self.losses).sum() / self.divisor

    def take_back(self) -> list[MicroBatch]:
        """The gradient is forgotten: the passes that are to be made again."""
        micros, self.micros = self.micros, []
        self.losses.clear()
        self.tally = Tally()
        return micros


class UnderWay:
    def __init__(self, step: int, updates: int):
        """`updates`: its optimizer steps."""
        self.step = step
        self.gathered = [Gathered() for _ in range(updates)]
        self.counts: Counter[str] = Counter()  # of groups and tokens
        self.seconds = {"logprob_s": 0.0, "update_s": 0.0}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - began

    @property
    def micros(self) -> list[MicroBatch]:
        """All passes that were made."""
        return [micro for gathered in self.gathered for micro in gathered.micros]
