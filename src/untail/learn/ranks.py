"""The ranks of a data-parallel learner: who trains what, and what has to be known to all.

Invariant: all ranks get the same batch and take the same decisions from it; advantages and normalisers are those of the
whole batch everywhere, so nothing has to be exchanged for them. A rank trains the samples that `share` gives it, and
makes as many passes as any other. Without a group there is one rank, and nothing is exchanged or changed.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from untail.engine.models.decoder import Decoder
from untail.learn.pack import MicroBatch, idle
from untail.learn.sample import Sample
from untail.learn.tally import Tally

T = TypeVar("T")


class Ranks:
    def __init__(self, group: dist.ProcessGroup | None = None):
        """On GPUs the process has set its device."""
        self.group = group
        self.world = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()

    def shard(self, module: nn.Module) -> None:
        if self.group is None:
            return
        from untail.learn import sharded  # costs a second to import, which one rank alone need not pay

        if isinstance(module, Decoder):
            sharded.shard_decoder(module, self.group)
        else:
            sharded.shard_module(module, self.group)

    def refresh(self, module: nn.Module) -> None:
        """After its parameters were written to: what was gathered of them before is of no use."""
        if self.group is not None:
            from untail.learn import sharded

            sharded.put_back(module)

    def share(self, samples: Sequence[Sample]) -> list[Sample]:
        """This rank's run of the samples, about its part of their tokens; siblings stay together where they can."""
        if self.world == 1:
            return list(samples)
        lengths = np.array([len(sample.weight_N) for sample in samples])
        middles = np.cumsum(lengths) - lengths / 2
        owner = np.minimum(self.world * middles // max(lengths.sum(), 1), self.world - 1)
        return [sample for sample, rank in zip(samples, owner, strict=True) if rank == self.rank]

    def level(self, batches: list[list[MicroBatch]], device: torch.device, dtype: torch.dtype) -> None:
        """As many passes on every rank."""
        counts = self.gather([len(micros) for micros in batches])
        most = [max(column) for column in zip(*counts, strict=True)]
        for micros, needed in zip(batches, most, strict=True):
            micros += [idle(device, dtype) for _ in range(needed - len(micros))]

    def gather(self, own: T) -> list[T]:
        """What every rank says; it can be pickled."""
        if self.group is None:
            return [own]
        said: list[T | None] = [None] * self.world
        dist.all_gather_object(said, own, self.group)
        return said  # type: ignore[return-value]

    def sum(self, own: Tensor) -> Tensor:
        if self.group is not None:
            own = own.clone()
            dist.all_reduce(own, group=self.group)
        return own

    def join(self, own: Tally) -> Tally:
        """As if one rank had gathered it all."""
        if self.group is None:
            return own
        joined = Tally()
        for numbers in self.gather(own.numbers()):
            joined.add(numbers)
        return joined
