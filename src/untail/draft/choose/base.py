"""What a chooser decides: before each step, which drafter guesses and how deep, or that none does.

Invariant: a choice changes how fast tokens come and never which.
"""

from typing import Any, ClassVar, NamedTuple

from untail.config import Strict
from untail.registry import Registry


class Arm(NamedTuple):
    drafter: str | None  # None: off, nothing is drafted
    depth: int  # drafts per sequence, on average; 0 when off


class Scene(NamedTuple):
    """A step before it is taken."""

    batch: int  # sequences that get tokens in it
    context: int  # their mean length in tokens
    acceptance: float | None  # recent share of drafts that were accepted, of all drafters; None: nothing was drafted


class Outcome(NamedTuple):
    """What a step gave. A drafter may have drafted less than asked for, or nothing."""

    emitted: float  # tokens, of all sequences; above 0
    drafted_for: int  # sequences that carried drafts
    drafted: int  # drafts
    accepted: int  # of these
    draft_s: float  # seconds of drafting
    step_s: float  # seconds of the step, with its drafting


OFF = Arm(None, 0)


class Chooser:
    """Called from the engine's thread alone: `choose` before a step and `heard` after it, if its seconds are those of
    decoding; steps that also filled in many prompts are not told."""

    class Config(Strict):
        pass

    config: Any
    section: ClassVar[str] = ""  # of the list of mechanisms, "7.6"

    def __init__(self, config: Any, drafters: list[str], seed: int):
        """Pre: the names of `drafters` are unique, the preferred one first."""
        self.config = config
        self.drafters = list(drafters)
        self.seed = seed

    def choose(self, scene: Scene) -> Arm:
        """Pre: scene.batch >= 1. Post: a drafter with depth >= 1, or OFF."""
        raise NotImplementedError

    def heard(self, scene: Scene, arm: Arm, outcome: Outcome) -> None:
        """Pre: `scene` and `arm` are the last `choose`'s."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on with the same choices, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Pre: `state` is of a chooser of the same name; drafters may have come or gone since."""


CHOOSERS: Registry[Chooser] = Registry("chooser")
