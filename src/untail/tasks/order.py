"""Which prompts a step trains on.

Invariant: a function of the seed and the step alone, so that a resumed run continues with the same data. A prompt comes
at most once per epoch; the few that do not fill a step sit an epoch out, others each time.
"""

import random

from untail.types import Prompt, stream_key


class PromptOrder:
    def __init__(self, prompts: list[Prompt], per_step: int, seed: int):
        """Pre: there are at least `per_step` prompts."""
        self.prompts = prompts
        self.per_step = per_step
        self.seed = seed

    def step(self, number: int) -> list[Prompt]:
        """The prompts of step `number`, counted from 1."""
        epoch, place = divmod(number - 1, len(self.prompts) // self.per_step)
        shuffled = list(self.prompts)
        random.Random(stream_key(self.seed, "epoch", epoch)).shuffle(shuffled)
        return shuffled[place * self.per_step : (place + 1) * self.per_step]
