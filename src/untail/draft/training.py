"""All drafters of a recipe that learn, trained together beside the learner.

Invariant: nothing is trained but between `begin_rollout` and `end_rollout`, when the target's weights stand still. In
checkpoints and on its way to engines, what belongs to a drafter carries its name; a checkpoint is the same wherever the
engines are.
"""

from pathlib import Path
from typing import Any

from untail.draft.base import DraftTrainer, Learned


class DraftTraining:
    def __init__(self, trainers: dict[str, DraftTrainer] | None = None):
        """By the drafter's name; there may be none."""
        self.trainers = trainers or {}

    def __bool__(self) -> bool:
        return bool(self.trainers)

    def start(self) -> None:
        for trainer in self.trainers.values():
            trainer.start()

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.close()

    def begin_rollout(self) -> None:
        for trainer in self.trainers.values():
            trainer.begin_rollout()

    def end_rollout(self) -> None:
        """Post: nothing is being trained."""
        for trainer in self.trainers.values():
            trainer.end_rollout()

    def occupied(self, share: float) -> None:
        """What share of the slots is busy of the engine on this device; from any thread."""
        for trainer in self.trainers.values():
            trainer.occupied(share)

    def hear_pass(self, micro: Any, hidden_TD: Any) -> None:
        for trainer in self.trainers.values():
            trainer.hear_pass(micro, hidden_TD)

    def after_update(self) -> dict[str, float]:
        """The target's weights have changed; figures of what was learned so far."""
        figures: dict[str, float] = {}
        for name, trainer in self.trainers.items():
            trainer.after_update()
            figures |= {f"{name}_{figure}": value for figure, value in trainer.figures().items()}
        return figures

    def fresh(self) -> dict[str, Learned]:
        """By drafter, what was learned since it was fetched last; whole, or not at all."""
        fetched = ((name, trainer.fresh()) for name, trainer in self.trainers.items())
        return {name: learned for name, learned in fetched if learned is not None}

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors, and numbers by drafter."""
        tensors: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for name, trainer in self.trainers.items():
            own, numbers[name] = trainer.state_dict()
            tensors |= {f"draft.{name}.{part}": tensor for part, tensor in own.items()}
        return tensors, numbers

    def load_state_dict(self, tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
        """Continue from `state_dict`; there may be other tensors and numbers in both."""
        for name, trainer in self.trainers.items():
            prefix = f"draft.{name}."
            own = {part.removeprefix(prefix): tensor for part, tensor in tensors.items() if part.startswith(prefix)}
            trainer.load_state_dict(own, numbers[name])

    def export(self, folder: Path) -> None:
        for trainer in self.trainers.values():
            trainer.export(folder)
