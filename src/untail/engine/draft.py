"""What the engine asks of whoever drafts for it. The engine declares it and imports no drafter.

Invariant: a verified draft changes how many steps a token takes and never which token it is. At each position the
target draws with that position's own random stream; a draft is taken while it equals what was drawn.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from untail.engine.sequence import Figures, Sequence

if TYPE_CHECKING:
    from untail.engine.runner import Runner


class Ask(NamedTuple):
    """A sequence that has caught up and may carry drafts in this step: its blocks hold `most` tokens more than it
    has."""

    sequence: Sequence
    most: int


class Draft(NamedTuple):
    """Tokens that may follow a sequence's own. With figures they are taken as they are, unverified: lossy."""

    tokens: list[int]
    figures: list[Figures] | None = None


NONE = Draft([])


class Verified(NamedTuple):
    """What a step gave a sequence that sampled in it, drafted for or not: the accepted drafts and one token more."""

    sequence: Sequence
    drafted: int
    accepted: int
    tokens: list[int]


class Speculation(Protocol):
    """Pre: every call but `occupied` comes from the engine's thread, and no call raises: a drafter's fault stays with
    it."""

    wants_hidden: bool  # the runner keeps the last layer's hidden state of every token it computes
    goes_unverified: bool  # somebody may give a token without the target

    def attach(self, runner: "Runner", slots: int) -> None:
        """Before anything else: what model drafters compute with, and how many sequences may run at once."""
        ...

    def begin(self, sequence: Sequence) -> None:
        """It came to the engine: added, or forked off another."""
        ...

    def depths(self, sequences: list[Sequence]) -> list[int]:
        """How many drafts each may carry in the next step. Pre: all of them are in a slot and have caught up; they may
        be none."""
        ...

    def occupied(self, sequences: int) -> None:
        """So many are in slots or about to get one, before each step: none, if the engine has nothing to do. From any
        thread."""
        ...

    def propose(self, asks: list[Ask]) -> list[Draft]:
        """One for each, none longer than asked for, of tokens that there are. Pre: a subset of the last `depths`,
        in the same order."""
        ...

    def verified(self, results: list[Verified], seconds: float, mostly_decoded: bool, steps: int = 1) -> None:
        """What became of it. `mostly_decoded`: so little was filled in that the seconds tell of the drafts.
        Several steps: those of a launch, in which nobody drafted."""
        ...

    def unverified(self, sequence: Sequence) -> Draft | None:
        """The next token of the only sequence in the engine, one with its figures, if somebody gives it without the
        target. Pre: its blocks have room for all its tokens."""
        ...

    def end(self, sequence: Sequence) -> None:
        """It left the engine."""
        ...

    def target_changed(self) -> None:
        """The target's weights are others now."""
        ...

    def figures(self) -> Mapping[str, Mapping[str, int]]:
        """By drafter, since the engine began: proposals, drafted, accepted, unverified, failures."""
        ...
