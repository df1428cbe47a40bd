"""7.3, drafts from the sequence's own prompt and response: the fallback that needs nothing.

Invariant: a draft becomes longer while drafts are accepted whole, and short again with the first that is not; steps in
which this drafter guessed nothing say nothing about it.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationInfo, field_validator

from untail.config import PositiveInt, Strict
from untail.draft.base import DRAFTERS, Drafter
from untail.draft.suffix import SuffixIndex
from untail.engine.draft import Ask, Draft
from untail.engine.sequence import Sequence


@dataclass(slots=True)
class Followed:
    """A sequence in the engine: a stream of an index, and how long its next draft is."""

    index: SuffixIndex
    stream: int
    length: int


@DRAFTERS.register("ngram")
class NgramDrafter(Drafter):
    name = "ngram"
    section = "7.3"

    class Config(Strict):
        longest: PositiveInt = 7  # tokens that a match is told by
        shortest: PositiveInt = 3  # tokens that must match
        cap: PositiveInt = 32  # tokens of the longest draft
        start: PositiveInt = 2  # tokens of a draft after a rejection, and of the first
        grow: PositiveInt = 2  # tokens more after a draft that was accepted whole

        @field_validator("shortest", "start")
        @classmethod
        def _is_within(cls, value: int, info: ValidationInfo) -> int:
            high = {"shortest": "longest", "start": "cap"}[str(info.field_name)]
            if value > info.data.get(high, value):
                raise ValueError(f"it exceeds {high} = {info.data[high]}; lower it")
            return value

    def __init__(self, config: Any):
        super().__init__(config)
        self._followed: dict[str, Followed] = {}

    def begin(self, sequence: Sequence) -> None:
        self._followed[sequence.id] = Followed(*self._enter(sequence), self.config.start)

    def propose(self, asks: list[Ask]) -> list[Draft]:
        return [Draft(self._guess(ask)) for ask in asks]

    def hear(self, sequence: Sequence, tokens: list[int], drafted: int, accepted: int) -> None:
        followed, config = self._followed.get(sequence.id), self.config
        if followed is None:  # what ends with a step has left before the step's outcome is told
            return
        followed.index.grew(followed.stream)
        if drafted:
            followed.length = min(followed.length + config.grow, config.cap) if accepted == drafted else config.start

    def end(self, sequence: Sequence) -> None:
        followed = self._followed.pop(sequence.id)
        followed.index.grew(followed.stream)  # others may draft from it

    def _enter(self, sequence: Sequence) -> tuple[SuffixIndex, int]:
        """The index that it drafts from, and its stream there."""
        index = SuffixIndex(self.config.longest, self.config.shortest)
        return index, index.add(sequence.tokens, sequence.prompt_length, 0)

    def _guess(self, ask: Ask) -> list[int]:
        followed = self._followed[ask.sequence.id]
        followed.index.grew(followed.stream)  # an environment's reply came without a word
        return followed.index.follow(followed.stream, min(followed.length, ask.most))
