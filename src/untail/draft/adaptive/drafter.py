"""The adaptive drafter (7.5): a layer on the target's hidden states, trained while the run goes on.

Here is who serves, beside the engine; trainer.py has who learns, beside the learner. What was learned serves from the
step on before which it came.

Invariant: before it has learned anything it has no guess.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from untail.config import PositiveFloat, PositiveInt, Strict
from untail.draft.base import DRAFTERS, DraftTrainer, Learned, LearningDrafter
from untail.engine.draft import Ask, Draft
from untail.engine.sequence import Sequence

if TYPE_CHECKING:
    from untail.draft.adaptive.target import Target
    from untail.engine.runner import Runner


@DRAFTERS.register("adaptive")
class Adaptive(LearningDrafter):
    wants_hidden = True
    section = "7.5"

    class Config(Strict):
        lr: PositiveFloat = 1e-3
        window: PositiveInt = 512  # tokens that a draft looks back to
        slices: Annotated[int, Field(ge=0)] = 0  # of training after each update, on top of those on idle time
        idle_below: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of slots: with fewer busy it may train; 0: never
        test_steps: Annotated[int, Field(ge=0, le=16)] = 2  # passes of training that go on from its own guesses
        buffer_tokens: PositiveInt = 65536  # that it learns from, at most
        start: str | None = None  # folder of an exported drafter of this model; unset: from scratch

    config: Config

    @classmethod
    def trainer(cls, config: Config, target: "Target") -> DraftTrainer:
        from untail.draft.adaptive.trainer import AdaptiveTrainer

        return AdaptiveTrainer(config, target)

    def attach(self, runner: "Runner") -> None:
        from untail.draft.adaptive.export import first_model  # here: a recipe is read without torch
        from untail.draft.adaptive.serve import Guesser

        model, has_learned = first_model(self.config.start, runner.decoder)
        self.guesser = Guesser(runner, model, self.config.window, has_learned)

    def load(self, learned: Learned) -> None:
        self.guesser.load(learned)

    def target_changed(self) -> None:
        self.guesser.head.refresh()

    def propose(self, asks: list[Ask]) -> list[Draft]:
        return self.guesser.drafts(asks)

    def end(self, sequence: Sequence) -> None:
        self.guesser.forget(sequence)
