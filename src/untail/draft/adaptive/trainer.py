"""What trains the adaptive drafter, beside the learner.

It learns from the learner's own pass, on idle time: while few slots of the engine on its device are busy in a rollout.
A checkpoint has its weights and its optimizer, and not what it was learning from.

Invariant: on its thread it is trained during rollouts alone, whoever says at other times that the engine is idle: the
target's weights change then, or the device is somebody else's. Before it has learned anything it gives nothing.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from untail.draft.adaptive.data import Captures, Packed
from untail.draft.adaptive.export import export, first_model
from untail.draft.adaptive.spot import Spot
from untail.draft.adaptive.target import Target
from untail.draft.base import DraftTrainer, Learned

if TYPE_CHECKING:
    from untail.draft.adaptive.drafter import Adaptive


class AdaptiveTrainer(DraftTrainer):
    def __init__(self, config: "Adaptive.Config", target: Target):
        self.config = config
        self._target = target
        model, self._began_learned = first_model(config.start, target)
        self.data = Captures(config.buffer_tokens)
        self.spot = Spot(target, model, self.data, config.lr, config.test_steps)
        self._busy = 1.0  # share of the slots
        self._rolls_out = False
        self._deciding = threading.Lock()

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

    def hear_pass(self, micro: Packed, hidden_TD: Tensor) -> None:
        self.data.hear(micro, hidden_TD)
        self.spot.head.see(micro.ids_T)

    def after_update(self) -> None:
        """What is common may have changed: that goes to the engine also where nothing was learned meanwhile."""
        self.data.end_step()
        self.spot.head.refresh()
        if not self.spot.run(self.config.slices) and (self._began_learned or self.spot.slices):
            self.spot.publish()

    def fresh(self) -> Learned | None:
        return self.spot.fresh()

    def _decide(self) -> None:
        if self._rolls_out and self._busy < self.config.idle_below:
            self.spot.allow()
        else:
            self.spot.pause()

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.spot.state_dict()

    def load_state_dict(self, tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
        self.spot.load_state_dict(tensors, numbers)

    def export(self, folder: Path) -> None:
        """What was learned so far, served already or not."""
        export(self.spot.weights(), self._target, folder)

    def figures(self) -> dict[str, float]:
        return self.spot.figures()

    def close(self) -> None:
        self.spot.close()
