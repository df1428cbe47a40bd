"""The order of prompts where no mechanism chooses.

Invariant: a function of the seed, the place and who was missed, so that a resumed run continues with the same data.
Every prompt comes once per epoch, in an order of that epoch's own; one whose turn comes while it is under way gets it
later.
"""

import random
from collections.abc import Callable, Iterator

from untail.types import Prompt, stream_key


class PromptOrder:
    def __init__(self, prompts: list[Prompt], seed: int):
        self.prompts = prompts
        self.seed = seed
        self.place = 0  # how many have been drawn
        self.missed: list[Prompt] = []  # drawn while they were under way
        self._epoch: tuple[int, list[Prompt]] = (-1, [])

    def draw(self, is_under_way: Callable[[str], bool]) -> Iterator[Prompt]:
        """Prompts that are not under way, from the present place on, until all are."""
        for prompt in [prompt for prompt in self.missed if not is_under_way(prompt.id)]:
            self.missed.remove(prompt)
            yield prompt
        in_vain = 0
        while in_vain < len(self.prompts):
            prompt = self._next()
            if is_under_way(prompt.id):
                in_vain += 1
                if prompt not in self.missed:
                    self.missed.append(prompt)
            else:
                in_vain = 0
                yield prompt

    def _next(self) -> Prompt:
        epoch, number = divmod(self.place, len(self.prompts))
        if self._epoch[0] != epoch:
            shuffled = list(self.prompts)
            random.Random(stream_key(self.seed, "epoch", epoch)).shuffle(shuffled)
            self._epoch = (epoch, shuffled)
        self.place += 1
        return self._epoch[1][number]
