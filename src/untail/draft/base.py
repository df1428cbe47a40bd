"""What a drafter is: something that guesses the next tokens of sequences, at once for all that ask.

Invariant: a drafter may be wrong and may be slow, and it may raise: none of it changes a token. It is called from the
engine's thread alone.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from untail.config import Strict
from untail.engine.draft import Ask, Draft
from untail.engine.sequence import Sequence
from untail.registry import Registry

if TYPE_CHECKING:
    from untail.engine.runner import Runner


Learned = dict[str, Any]
"""Tensors by name: what a drafter that learns needs of its trainer."""


class Drafter:
    """Override `propose`, and of the rest what is needed."""

    class Config(Strict):
        pass

    config: Any
    section: ClassVar[str] = ""  # of the list of mechanisms, "7.2"
    wants_hidden = False  # the target's last hidden states are kept for it
    wants_past = False  # earlier responses to the prompt come with each sequence (`SequenceSpec.past`)

    @classmethod
    def is_lossy(cls, config: Any) -> bool:
        """Whether some of its tokens may be taken unverified."""
        return False

    def __init__(self, config: Any):
        self.config = config

    def attach(self, runner: "Runner") -> None:
        """Before anything else: the target model, its KV and, if wanted, its hidden states."""

    def begin(self, sequence: Sequence) -> None:
        """It came to the engine, with the response tokens it has (`sequence.tokens[sequence.prompt_length:]`)."""

    def propose(self, asks: list[Ask]) -> list[Draft]:
        """One draft for each, at most `ask.most` tokens, empty where there is no guess."""
        raise NotImplementedError

    def hear(self, sequence: Sequence, tokens: list[int], drafted: int, accepted: int) -> None:
        """It got these tokens (the last of `sequence.tokens`), whoever drafted; `drafted` counts this drafter's own."""

    def unverified(self, sequence: Sequence) -> Draft | None:
        """The next token of the only sequence in the engine as it is, one with its figures, if it gives it. Pre: it
        is lossy."""
        return None

    def end(self, sequence: Sequence) -> None:
        """It left the engine."""

    def target_changed(self) -> None:
        """The target's weights are others now."""


class LearningDrafter(Drafter):
    """One that is trained while the run goes on. What is here serves, beside the engine; what trains it (`trainer`)
    lives beside the learner, in this process or in another."""

    @classmethod
    def trainer(cls, config: Any, target: Any) -> "DraftTrainer":
        """Beside a target's weights: those that the learner moves."""
        raise NotImplementedError

    def load(self, learned: Learned) -> None:
        """What its trainer has learned so far, whole: drafts are made with it from now on."""
        raise NotImplementedError


class DraftTrainer:
    """What trains one drafter. The learner's thread calls it; `occupied` and `fresh` may come from any."""

    def start(self) -> None:
        """Train on idle time from now on."""

    def begin_rollout(self) -> None:
        """Until `end_rollout` there may be idle time; what is idle at other times is not the run's."""

    def occupied(self, share: float) -> None:
        """What share of the slots is busy of the engine on its device: below some, time is idle."""

    def end_rollout(self) -> None:
        """The target's weights may change from now on. Post: nothing is being trained."""

    def hear_pass(self, micro: Any, hidden_TD: Any) -> None:
        """The learner's own pass over a micro-batch (learn/pack.py), and the target's last hidden states in it."""

    def after_update(self) -> None:
        """The target's weights have changed."""

    def fresh(self) -> Learned | None:
        """What it has learned, whole, unless that was fetched already."""
        return None

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Its own weights and optimizer state as flat tensors, and numbers: what a checkpoint keeps."""
        raise NotImplementedError

    def load_state_dict(self, tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """For other engines to load."""

    def figures(self) -> dict[str, float]:
        """Of its training, so far."""
        return {}

    def close(self) -> None:
        """Stop training."""


DRAFTERS: Registry[Drafter] = Registry("drafter")
