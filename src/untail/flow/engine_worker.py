"""An engine in a process of its own, and its seat as the driver sees it.

Invariant: the engine's process has weights of its own, of one whole version. In deterministic mode a turn is one step,
exactly as in the driver's process; otherwise it is as many steps as fit into `TURN_S`, and ends early when a sequence
has come to an end or a boundary, or when the driver has something new to say.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from untail.backends.base import EngineLost, Load
from untail.backends.seat import Order, Seat, Turn
from untail.backends.step_clock import LATENCY
from untail.config import Recipe
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import load_model, memory_of
from untail.engine.runner import Runner
from untail.engine.weights import Source
from untail.flow.build import build_engine
from untail.flow.exchange import CPU, Exchange
from untail.flow.failures import WorkerLost
from untail.flow.far_drafters import name_of
from untail.flow.link import Link
from untail.flow.peer import portable
from untail.flow.weights import fetch
from untail.flow.worker import OneWorker, Worker
from untail.types import Chunk

TURN_S = 0.02  # far longer than a message to the driver and back takes
POLICY = "policy"  # under this name the learner publishes its weights


def exchange_device(recipe: Recipe, decoder: Decoder) -> torch.device:
    """Where weights are sent from and received: NCCL goes from GPU to GPU, gloo through the hosts."""
    return decoder.embed.device if recipe.flow.weights == "nccl" else CPU


@dataclass(frozen=True)
class Published:
    """Weights that are to be fetched from where the learner published them."""


@dataclass(frozen=True, slots=True)
class About:
    """What the driver has to know of an engine."""

    load: Load
    longest: int
    vocab: int
    wants_past: bool
    one_step: bool  # a turn is never longer


class WorkerSeat(Seat):
    def __init__(self, link: Link, *about: object):
        super().__init__(*about)  # type: ignore[arg-type]
        self._link = link
        self.received: tuple[int, dict[str, Tensor]] | None = None  # over the exchange, and not used yet

    def load_weights(self, turn: Turn, source: Source | Published, version: int) -> None:
        if isinstance(source, Published):
            source = self._published(version)
        super().load_weights(turn, source, version)

    def _published(self, version: int) -> Source:
        received, self.received = self.received, None
        if received is not None and received[0] == version:
            return received[1]
        return fetch(self._link, POLICY, version)[1].tensors


class EngineWorker(Worker):
    def __init__(self, recipe: Recipe):
        self._recipe = recipe
        model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
        self.engine, self.speculator = build_engine(recipe, model)
        self.seat = WorkerSeat(self._link, self.engine, LATENCY if recipe.deterministic else None)
        self._one_step = recipe.deterministic
        self._hurry = threading.Event()

    def about(self) -> About:
        limits = self.engine.limits
        wants_past = self.speculator is not None and self.speculator.wants_past
        return About(self.seat.load(), limits.longest, limits.vocab, wants_past, self._one_step)

    def turn(self, orders: list[Order], stepping: bool) -> Turn:
        self._hurry.clear()
        until = time.perf_counter() + TURN_S

        def is_over(turn: Turn) -> bool:
            ends = any(not isinstance(item, Chunk) or item.end is not None for _, item in turn.items)
            return self._one_step or ends or self._hurry.is_set() or time.perf_counter() > until

        turn = self.seat.turn(orders, stepping, is_over)
        turn.outcomes = [replace(one, error=portable(one.error)) if one.error else one for one in turn.outcomes]
        turn.items = [(name, portable(item) if isinstance(item, Exception) else item) for name, item in turn.items]
        return turn

    async def hurry(self) -> None:
        self._hurry.set()

    def join_exchange(self, address: str, rank: int, world: int) -> None:
        self._exchange = Exchange(address, rank, world, exchange_device(self._recipe, self.engine.decoder))

    def receive_weights(self) -> None:
        """What the learner sends now; `load_weights` uses it."""
        self.seat.received = self._exchange.receive()

    def load_drafters(self, drafters: list[str]) -> None:
        """What these have learned, as it was published last."""
        assert self.speculator is not None
        self.speculator.load({name: dict(fetch(self._link, name_of(name))[1].tensors) for name in drafters})

    def capacity(self) -> float:
        """Bytes that its device holds."""
        return memory_of(self.engine.decoder.embed.device)

    def footprint(self) -> float:
        """Its weights and its KV pool."""
        kv = self.engine.pool.total * Runner.block_bytes(self.engine.decoder)
        return float(kv + sum(parameter.nbytes for parameter in self.engine.decoder.parameters()))

    def onload(self) -> None:
        self.engine.wake()

    def offload(self) -> None:
        self.engine.sleep()


class FarSeat:
    """A worker's seat. Once its worker is lost it takes no more turns, until it is `back`."""

    def __init__(
        self, worker: OneWorker, about: About, is_lost: Callable[[str], None], occupied: Callable[[int], None]
    ):
        """`is_lost` hears of it once; `occupied`, of how many sequences run there, and before one begins to."""
        self.worker = worker
        self._about = about
        self._is_lost = is_lost
        self._occupied = occupied
        self._running = 0
        self._may_hurry = False
        self._lost = False

    async def turn(self, orders: list[Order], stepping: bool) -> Turn:
        self._may_hurry = not self._about.one_step
        if stepping:
            self._runs(max(1, self._running))
        try:
            turn: Turn = await self.worker.turn(orders, stepping)
            self._runs(turn.running)
            return turn
        except WorkerLost as error:
            self._runs(0)
            if not self._lost:
                self._lost = True
                self._is_lost(str(error))
            raise EngineLost(str(error)) from error
        finally:
            self._may_hurry = False

    def _runs(self, running: int) -> None:
        self._running = running
        self._occupied(running)

    def hurry(self) -> None:
        if self._may_hurry:
            self._may_hurry = False
            self.worker.hurry()

    def idle(self) -> None:
        """Whoever wants to know was told after the last turn (`occupied`)."""

    def back(self) -> None:
        self._lost = False

    def close(self) -> None:
        """The cluster ends its workers."""
