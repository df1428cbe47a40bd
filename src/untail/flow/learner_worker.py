"""The learner in a process of its own.

Invariant: after `update` the weights of that version are published, and with them all that the next update depends on:
a learner that dies costs nothing but the update it was at, which is made again from the same batch and the same state.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from untail.config import Recipe
from untail.engine.models.folder import save_folder
from untail.engine.models.load import load_model
from untail.engine.models.names import split_out
from untail.errors import UserError, WeightsError
from untail.flow.build import build_trainer
from untail.flow.engine_worker import POLICY
from untail.flow.weights import Tensors, fetch, publish
from untail.flow.worker import Worker
from untail.types import Batch

STATE = "learner"  # under this name it publishes weights, moments and numbers


class LearnerWorker(Worker):
    def __init__(self, recipe: Recipe):
        self.model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
        self.trainer = build_trainer(recipe, self.model.decoder)
        self._keeps_state = recipe.flow.recover

    def footprint(self) -> float:
        """Weights, gradients and two moments; activations come and go."""
        return 4.0 * sum(parameter.nbytes for parameter in self.model.decoder.parameters())

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch, and publish what came of it under the step's number."""
        figures = self.trainer.update(batch)
        self._publish(batch.step, figures)
        return figures

    def recover(self, version: int) -> dict[str, float] | None:
        """Be as the learner was that published `version`; 0 is how everybody begins. If it had published the next one
        already when it was lost, be as it was then: the figures of that update come back."""
        for wanted in (version + 1, version):
            with suppress(WeightsError):
                _, found = fetch(self._link, STATE, wanted)
                self.trainer.load_state_dict(dict(found.tensors), found.numbers["trainer"])
                return found.numbers["figures"] if wanted > version else None
        if version:
            raise UserError(f"the learner's state after step {version} is nowhere; go on from a checkpoint: --resume")
        return None

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self.trainer.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor], numbers: dict[str, Any], version: int) -> None:
        self.trainer.load_state_dict(tensors, numbers)
        if version:
            self._publish(version, {})

    def export(self, folder: Path) -> None:
        save_folder(self.model.decoder, self.model.tokenizer, folder)

    def _publish(self, version: int, figures: dict[str, float]) -> None:
        named = {POLICY: Tensors(dict(split_out(self.model.decoder)))}
        if self._keeps_state:
            tensors, numbers = self.trainer.state_dict()
            named[STATE] = Tensors(tensors, {"trainer": numbers, "figures": figures})
        publish(self._link, version, named)
