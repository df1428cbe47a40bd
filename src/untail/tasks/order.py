"""Which prompts a step trains on.

Invariant: a function of the seed and the step alone, so that a resumed run continues with the same data. Every prompt
comes once per epoch; a step may straddle two.
"""

import random

from untail.types import Prompt, stream_key


class PromptOrder:
    def __init__(self, prompts: list[Prompt], per_step: int, seed: int):
        self.prompts = prompts
        self.per_step = per_step
        self.seed = seed

    def step(self, number: int) -> list[Prompt]:
        """The prompts of step `number`, counted from 1; each at most once even where the step straddles two epochs."""
        begin = (number - 1) * self.per_step
        places = [divmod(place, len(self.prompts)) for place in range(begin, begin + self.per_step)]
        epochs = {epoch: self._epoch(epoch) for epoch in {epoch for epoch, _ in places}}
        return [epochs[epoch][place] for epoch, place in places]

    def _epoch(self, epoch: int) -> list[Prompt]:
        shuffled = list(self.prompts)
        random.Random(stream_key(self.seed, "epoch", epoch)).shuffle(shuffled)
        return shuffled
