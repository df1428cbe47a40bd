"""The learner, in a process of its own or in several: each rank of a group has its part of weights and moments.

Invariant: after `update` the weights of that version are published whole, and with them all that the next update
depends on: a learner that dies costs nothing but the update it was at, which is made again from the same batch and the
same state, whatever it had learned of that batch ahead. All ranks are called alike, and rank 0 speaks for them: what is
published does not show how many there were. A checkpoint of several is written by all of them, each its own part, and
any number goes on from it.
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
from untail.flow.beside_learner import BesideLearner
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
        self.beside = BesideLearner(recipe, self.model.decoder, self.rank, self.world)
        self._newest: tuple[int, dict[str, Tensor]] | None = None  # rank 0's whole weights, if they are to be sent
        if self.world == 1:
            self.trainer = build_trainer(recipe, self.model.decoder, self.beside.hear)

    def meet(self, address: str) -> None:
        """All ranks, where rank 0's host has this address free; before anything else."""
        backend = "nccl" if self.model.decoder.embed.is_cuda else "gloo"
        dist.init_process_group(backend, init_method=f"tcp://{address}", rank=self.rank, world_size=self.world)
        self.trainer = build_trainer(self.recipe, self.model.decoder, self.beside.hear, dist.group.WORLD)

    def join_exchange(self, address: str, rank: int, world: int) -> None:
        self._exchange = Exchange(address, rank, world, exchange_device(self.recipe, self.model.decoder))

    def send_weights(self, version: int) -> None:
        """What was published as this version, to all members of the exchange. Rank 0 alone, before the next update."""
        newest, self._newest = self._newest, None
        if newest is not None and newest[0] == version:
            self._exchange.send(version, newest[1])
        else:  # another learner has published it
            self._exchange.send(version, fetch(self._link, POLICY, version)[1].tensors)

    async def occupied(self, share: float) -> None:
        """What share of its slots is busy of the engine on this device: where few are, drafters learn."""
        self.beside.training.occupied(share)

    def publish_drafters(self, version: int) -> list[str]:
        """What drafters have learned since the last time; which have. Rank 0 alone."""
        return self.beside.publish(self._link, version)

    def onload(self) -> None:
        self.trainer.wake()
        self.beside.onload()

    def offload(self) -> None:
        """All that only an update needs; the weights stay, for whoever asks for them meanwhile."""
        self.beside.offload()
        self.trainer.sleep()

    def close(self) -> None:
        self.beside.training.close()

    def footprint(self) -> float:
        return float(self.trainer.bytes)

    def learn(self, portion: Batch) -> float:
        """Some groups of a batch, ahead of the others; the seconds that it took."""
        with self.beside.at_rest():
            return self.trainer.learn(portion)

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on the batch, or on what is left of it after its portions, and publish what came of it under the step's
        number."""
        with self.beside.at_rest():
            figures = self.trainer.update(batch)
            whole = self._weights()
            figures |= self.beside.training.after_update()
            self._publish(batch.step, whole, figures)
            return figures

    def recover(self, version: int) -> dict[str, float] | None:
        """Be as the learner was that published `version`; 0 is how everybody begins. If it had published the next one
        already when it was lost, be as it was then: the figures of that update come back."""
        for wanted in (version + 1, version):
            with suppress(WeightsError):
                _, found = fetch(self._link, STATE, wanted)
                self._load(dict(found.tensors), found.numbers)
                return found.numbers["figures"] if wanted > version else None
        if version:
            raise UserError(f"the learner's state after step {version} is nowhere; go on from a checkpoint: --resume")
        return None

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of rank 0, whole; of the others nothing."""
        tensors, numbers = self.trainer.state_dict()
        drafted, drafters = self.beside.training.state_dict()
        whole = self._first_has((name, whole_of(tensor)) for name, tensor in tensors.items())
        return whole | drafted, {"trainer": numbers, "draft": drafters}

    def load_state_dict(self, tensors: dict[str, Tensor], state: dict[str, Any], version: int) -> None:
        whole = self._load(tensors, state)
        if version:
            self._publish(version, whole, {})

    def save(self, folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
        """A checkpoint, each rank its part."""
        from untail.learn import sharded_checkpoint

        drafted, drafters = self.beside.training.state_dict()
        return sharded_checkpoint.save(folder, step, self.trainer, state | {"draft": drafters}, keep, drafted)

    def restore(self, path: Path, version: int) -> None:
        """From what several ranks have saved, however many they were."""
        from untail.learn import sharded_checkpoint

        drafted, _ = self.beside.training.state_dict()
        with self.beside.at_rest():
            state = sharded_checkpoint.load(path, self.trainer, drafted)
            whole = self._weights()
            self.beside.training.load_state_dict(drafted, state["draft"])
        if version:
            self._publish(version, whole, {})

    def export(self, folder: Path) -> None:
        """And the drafters that learned, beside it."""
        self.beside.training.export(folder.parent / "drafter")
        if self.world == 1:
            save_folder(self.model.decoder, self.model.tokenizer, folder)
            return
        learned = self._first_has((name, tensor.clone()) for name, tensor in self.trainer.weights())
        if self.rank == 0:
            whole = load_model(self.recipe.model, "cpu", self.recipe.engine.dtype)
            weights.update(whole.decoder, learned, 0, 1)
            save_folder(whole.decoder, whole.tokenizer, folder)

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Tensor]:
        """Weights as they are then."""
        own, _ = self.trainer.state_dict()
        fitting = {name: spread_like(own[name], tensor) if name in own else tensor for name, tensor in tensors.items()}
        with self.beside.at_rest():
            self.trainer.load_state_dict(fitting, state["trainer"])
            whole = self._weights()
            self.beside.training.load_state_dict(tensors, state["draft"])
            return whole

    def _weights(self) -> dict[str, Tensor]:
        """Whole, with rank 0; all ranks have to ask."""
        copied = ((name, tensor if self.world == 1 else tensor.clone()) for name, tensor in self.trainer.weights())
        whole = self._first_has(copied)
        self.beside.target_is(whole)
        return whole

    def _publish(self, version: int, whole: dict[str, Tensor], figures: dict[str, float]) -> None:
        named = {POLICY: Tensors(whole)}
        if self._keeps_state:
            tensors, state = self.state_dict()
            named[STATE] = Tensors(tensors, {**state, "figures": figures})
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
