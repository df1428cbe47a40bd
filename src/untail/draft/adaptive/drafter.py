"""The adaptive drafter (7.5): a layer on the target's hidden states, trained while the run goes on.

It learns from the learner's own pass, on idle time: while few of the engine's slots are busy in a rollout. What it
learned serves from the engine's next step on. A checkpoint has its weights and its optimizer, and not what it was
learning from.

Invariant: before it has learned anything it has no guess. On its thread it is trained during rollouts alone, whoever
says at other times that the engine is idle: the target's weights change then, or the device is somebody else's.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from untail.config import PositiveFloat, PositiveInt, Strict
from untail.draft.base import DRAFTERS, LearningDrafter
from untail.engine.draft import Ask, Draft
from untail.engine.sequence import Sequence

if TYPE_CHECKING:
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

    def attach(self, runner: "Runner") -> None:
        from untail.draft.adaptive.data import Captures  # here: a recipe is read without torch
        from untail.draft.adaptive.export import load
        from untail.draft.adaptive.model import DraftModel
        from untail.draft.adaptive.serve import Guesser
        from untail.draft.adaptive.spot import Spot

        target, config = runner.decoder, self.config
        model = DraftModel(target.shape, target.embed.device, target.embed.dtype).requires_grad_(False).initialise()
        learned = load(Path(config.start).expanduser(), target) if config.start is not None else None
        model.load_state_dict(learned or model.state_dict())
        self.data = Captures(config.buffer_tokens)
        self.spot = Spot(target, model, self.data, config.lr, config.test_steps)
        self.guesser = Guesser(runner, model, self.spot.head, config.window, has_learned=learned is not None)
        self._busy = 1.0  # share of the slots
        self._rolls_out = False
        self._deciding = threading.Lock()

    def propose(self, asks: list[Ask]) -> list[Draft]:
        fresh = self.spot.fresh()
        if fresh is not None:
            self.guesser.load(fresh)
        return self.guesser.drafts(asks)

    def end(self, sequence: Sequence) -> None:
        self.guesser.forget(sequence)

    def start(self) -> None:
        self.spot.start()

    def occupied(self, share: float) -> None:
        with self._deciding:
            self._busy = share
            self._decide()

    def begin_rollout(self) -> None:
        with self._deciding:
            self._rolls_out = True
            self._decide()

    def end_rollout(self) -> None:
        with self._deciding:
            self._rolls_out = False
            self._decide()
        self.spot.wait()

    def hear_pass(self, micro: Any, hidden_TD: Any) -> None:
        self.data.hear(micro, hidden_TD)
        self.spot.head.see(micro.ids_T)

    def after_update(self) -> None:
        self.data.end_step()
        self.spot.head.refresh()
        self.spot.run(self.config.slices)

    def _decide(self) -> None:
        if self._rolls_out and self._busy < self.config.idle_below:
            self.spot.allow()
        else:
            self.spot.pause()

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, numbers = self.spot.state_dict()
        return tensors | {"seen": self.spot.head.state()}, numbers

    def load_state_dict(self, tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
        self.spot.load_state_dict(tensors, numbers)
        self.spot.head.restore(tensors["seen"])

    def export(self, folder: Path) -> None:
        """What was learned so far, served already or not."""
        from untail.draft.adaptive.export import export

        export(self.spot.weights(), self.guesser.runner.decoder, folder)

    def learned(self) -> dict[str, float]:
        return self.spot.figures()

    def close(self) -> None:
        self.spot.close()
