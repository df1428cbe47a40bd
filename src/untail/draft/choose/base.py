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

    def heard(
        self, scene: Scene, arm: Arm, emitted: float, drafted: int, accepted: int, draft_s: float, step_s: float
    ) -> None:
        """What the step gave. Pre: `scene` and `arm` are the last `choose`'s, emitted > 0, accepted <= drafted,
        draft_s <= step_s. A drafter may have drafted less than asked for, or nothing."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on with the same choices, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Pre: `state` is of a chooser of the same name; drafters may have come or gone since."""


CHOOSERS: Registry[Chooser] = Registry("chooser")
