"""The learner, in a process of its own or in several: each rank of a group has its part of weights and moments.

Invariant: after `update` the weights of that version are published whole, and with them all that the next update
depends on: a learner that dies costs nothing but the update it was at, which is made again from the same batch and the
same state. All ranks are called alike, and rank 0 speaks for them: what is published does not show how many there were.
A checkpoint of several is written by all of them, each its own part, and any number goes on from it.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from untail.config import Recipe
from untail.engine import weights
from untail.engine.models.folder import save_folder
from untail.engine.models.load import load_model
from untail.errors import UserError, WeightsError
from untail.flow.build import build_trainer
from untail.flow.engine_worker import POLICY, exchange_device
from untail.flow.exchange import Exchange
from untail.flow.weights import Tensors, fetch, publish
from untail.flow.worker import Worker
from untail.learn.parts import spread_like, whole_of
from untail.types import Batch

STATE = "learner"  # under this name it publishes weights, moments and numbers


class LearnerWorker(Worker):
    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
        self._keeps_state = recipe.flow.recover
        self._newest: tuple[int, dict[str, Tensor]] | None = None  # rank 0's whole weights, if they are to be sent
        if self.world == 1:
            self.trainer = build_trainer(recipe, self.model.decoder)

    def meet(self, address: str) -> None:
        """All ranks, where rank 0's host has this address free; before anything else."""
        backend = "nccl" if self.model.decoder.embed.is_cuda else "gloo"
        dist.init_process_group(backend, init_method=f"tcp://{address}", rank=self.rank, world_size=self.world)
        self.trainer = build_trainer(self.recipe, self.model.decoder, group=dist.group.WORLD)

    def join_exchange(self, address: str, rank: int, world: int) -> None:
        self._exchange = Exchange(address, rank, world, exchange_device(self.recipe, self.model.decoder))

    def send_weights(self, version: int) -> None:
        """What was published as this version, to all members of the exchange. Rank 0 alone, before the next update."""
        newest, self._newest = self._newest, None
        if newest is not None and newest[0] == version:
            self._exchange.send(version, newest[1])
        else:  # another learner has published it
            self._exchange.send(version, fetch(self._link, POLICY, version)[1].tensors)

    def footprint(self) -> float:
        """Weights, gradients and two moments; activations come and go."""
        return 4.0 * sum(parameter.nbytes for parameter in self.model.decoder.parameters()) / self.world

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
                self._load(dict(found.tensors), found.numbers["trainer"])
                return found.numbers["figures"] if wanted > version else None
        if version:
            raise UserError(f"the learner's state after step {version} is nowhere; go on from a checkpoint: --resume")
        return None

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of rank 0, whole; of the others nothing."""
        tensors, numbers = self.trainer.state_dict()
        return self._first_has((name, whole_of(tensor)) for name, tensor in tensors.items()), numbers

    def load_state_dict(self, tensors: dict[str, Tensor], numbers: dict[str, Any], version: int) -> None:
        self._load(tensors, numbers)
        if version:
            self._publish(version, {})

    def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        """A checkpoint, each rank its part."""
        from untail.learn import sharded_checkpoint

        return sharded_checkpoint.save(folder, step, self.trainer, state, keep)

    def restore(self, path: Path, version: int) -> None:
        """From what several ranks have saved, however many they were."""
        from untail.learn import sharded_checkpoint

        sharded_checkpoint.load(path, self.trainer)
        if version:
            self._publish(version, {})

    def export(self, folder: Path) -> None:
        if self.world == 1:
            save_folder(self.model.decoder, self.model.tokenizer, folder)
            return
        learned = self._first_has((name, tensor.clone()) for name, tensor in self.trainer.weights())
        if self.rank == 0:
            whole = load_model(self.recipe.model, "cpu", self.recipe.engine.dtype)
            weights.update(whole.decoder, learned, 0, 1)
            save_folder(whole.decoder, whole.tokenizer, folder)

    def _load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        own, _ = self.trainer.state_dict()
        fitting = {name: spread_like(own[name], tensor) if name in own else tensor for name, tensor in tensors.items()}
        self.trainer.load_state_dict(fitting, numbers)

    def _publish(self, version: int, figures: dict[str, float]) -> None:
        copied = ((name, tensor if self.world == 1 else tensor.clone()) for name, tensor in self.trainer.weights())
        named = {POLICY: Tensors(self._first_has(copied))}
        if self._keeps_state:
            tensors, numbers = self.state_dict()
            named[STATE] = Tensors(tensors, {"trainer": numbers, "figures": figures})
        if self.rank == 0:
            publish(self._link, version, named)
            if self.recipe.flow.weights != "store":
                self._newest = version, dict(named[POLICY].tensors)

    def _first_has(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """All ranks have to take every tensor, and only rank 0 keeps them."""
        kept: dict[str, Tensor] = {}
        for name, tensor in named:
            if self.rank == 0:
                kept[name] = tensor
        return kept
