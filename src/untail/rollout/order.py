"""The order of prompts where no mechanism chooses.

Invariant: a function of the seed and the place alone, so that a resumed run continues with the same data. Every prompt
comes once per epoch, in an order of that epoch's own.
"""

import random
from collections.abc import Iterator

from untail.types import Prompt, stream_key


class PromptOrder:
    def __init__(self, prompts: list[Prompt], seed: int):
        self.prompts = prompts
        self.seed = seed
        self.place = 0  # how many have been drawn
        self._epoch: tuple[int, list[Prompt]] = (-1, [])

    def draw(self) -> Iterator[Prompt]:
        """Prompts from the present place on, without end."""
        while True:
            epoch, number = divmod(self.place, len(self.prompts))
            if self._epoch[0] != epoch:
                shuffled = list(self.prompts)
                random.Random(stream_key(self.seed, "epoch", epoch)).shuffle(shuffled)
                self._epoch = (epoch, shuffled)
            self.place += 1
            yield self._epoch[1][number]
