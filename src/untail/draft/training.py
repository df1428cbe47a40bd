"""All drafters of a recipe that learn, trained together beside the learner.

Invariant: nothing is trained but between `begin_rollout` and `end_rollout`, when the target's weights stand still. In
checkpoints and on its way to engines, what belongs to a drafter carries its name; a checkpoint is the same wherever the
engines are. A trainer that raises is counted, said once, and gone on without: the others, the engine and the update
hear nothing of it. Checkpoints and exports alone do fail with it: who asked for one must know.
"""

from pathlib import Path
from typing import Any

from untail.draft.base import DraftTrainer, Learned
from untail.notice import say_once


class DraftTraining:
    def __init__(self, trainers: dict[str, DraftTrainer] | None = None):
        """By the drafter's name; there may be none."""
        self.trainers = trainers or {}
        self.failures = dict.fromkeys(self.trainers, 0)

    def __bool__(self) -> bool:
        return bool(self.trainers)

    def start(self) -> None:
        self._tell_all("start")

    def close(self) -> None:
        self._tell_all("close")

    def begin_rollout(self) -> None:
        self._tell_all("begin_rollout")

    def end_rollout(self) -> None:
        """Post: nothing is being trained."""
        self._tell_all("end_rollout")

    def occupied(self, share: float) -> None:
        """What share of the slots is busy of the engine on this device; from any thread."""
        self._tell_all("occupied", share)

    def hear_pass(self, micro: Any, hidden_TD: Any) -> None:
        self._tell_all("hear_pass", micro, hidden_TD)

    def after_update(self) -> dict[str, float]:
        """The target's weights have changed; figures of what was learned so far."""
        self._tell_all("after_update")
        figures: dict[str, float] = {}
        for name in self.trainers:
            own = self._tell(name, "figures") or {}
            figures |= {f"{name}_{figure}": value for figure, value in own.items()}
            figures[f"{name}_trainer_failures"] = self.failures[name]
        return figures

    def fresh(self) -> dict[str, Learned]:
        """By drafter, what was learned since it was fetched last; whole, or not at all."""
        fetched = ((name, self._tell(name, "fresh")) for name in self.trainers)
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
        """The only one to `folder` itself; of several, each to a folder of its name in it."""
        for name, trainer in self.trainers.items():
            trainer.export(folder if len(self.trainers) == 1 else folder / name)

    def _tell_all(self, what: str, *about: Any) -> None:
        for name in self.trainers:
            self._tell(name, what, *about)

    def _tell(self, name: str, what: str, *about: Any) -> Any:
        """What it answers; None if it raises."""
        try:
            return getattr(self.trainers[name], what)(*about)
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                say_once(
                    f"the trainer of draft.drafters.{name} failed in {what}: {type(error).__name__}: {error}; the run "
                    "goes on, and its metrics count the failures"
                )
            return None
