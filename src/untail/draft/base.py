"""What a drafter is: something that guesses the next tokens of sequences, at once for all that ask.

Invariant: a drafter may be wrong and may be slow, and it may raise: none of it changes a token. It is called from the
engine's thread alone.
"""

from typing import Any

from untail.config import Strict
from untail.engine.draft import Ask, Draft
from untail.engine.runner import Runner
from untail.engine.sequence import Sequence
from untail.registry import Registry


class Drafter:
    """Override `propose`, and of the rest what is needed."""

    class Config(Strict):
        pass

    config: Any
    name = ""  # as in the recipe
    wants_hidden = False  # the target's last hidden states are kept for it
    wants_past = False  # earlier responses to the prompt come with each sequence (`SequenceSpec.past`)
    is_lossy = False  # its tokens are not verified

    def __init__(self, config: Any):
        self.config = config

    def attach(self, runner: Runner) -> None:
        """Before anything else: the target model, its KV and, if wanted, its hidden states."""

    def begin(self, sequence: Sequence) -> None:
        """It came to the engine, with the response tokens it has (`sequence.tokens[sequence.prompt_length:]`)."""

    def propose(self, asks: list[Ask]) -> list[Draft]:
        """One draft for each, at most `ask.most` tokens, empty where there is no guess."""
        raise NotImplementedError

    def hear(self, sequence: Sequence, tokens: list[int], drafted: int, accepted: int) -> None:
        """It got these tokens (the last of `sequence.tokens`), whoever drafted; `drafted` counts this drafter's own."""

    def end(self, sequence: Sequence) -> None:
        """It left the engine."""


DRAFTERS: Registry[Drafter] = Registry("drafter")
