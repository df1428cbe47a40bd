"""Weights from one process to many over torch.distributed (gloo): for hosts that share no memory.

    Exchange(address, 0, 3).send(7, weights)         # rank 0
    version, weights = Exchange(address, 1, 3).receive()

Invariant: a receiver has a version whole, with the checksum that its sender told before it, or an error; nothing that
it uses is written to meanwhile. Once a member is gone, or too slow, the exchange is of no use to anybody: everybody
hears an error, and those who are left make another.
"""

import pickle
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore

from untail.errors import WeightsError
from untail.flow.weights import checksum, refuse_damaged

PATIENCE_S = 60.0
BROKEN = "the exchange of weights is broken"


class Exchange:
    def __init__(self, address: str, rank: int, world: int, patience_s: float = PATIENCE_S):
        """All members at once; rank 0 sends, and its host has this address free."""
        host, _, port = address.rpartition(":")
        patience = timedelta(seconds=patience_s)
        try:
            store = TCPStore(host, int(port), world, is_master=rank == 0, timeout=patience)
            self._group: Any = ProcessGroupGloo(store, rank, world, patience)
        except RuntimeError as error:
            missing = f"member {rank} of {world} found not all of them at {address}"
            raise WeightsError(f"{BROKEN}: {missing}: {error}") from error

    def send(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        about = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in whole.items()]
        told = torch.frombuffer(bytearray(pickle.dumps((version, about, checksum(whole)))), dtype=torch.uint8)
        self._broadcast(torch.tensor([len(told)]))
        self._broadcast(told)
        for tensor in whole.values():
            self._broadcast(tensor.reshape(-1).view(torch.uint8))

    def receive(self) -> tuple[int, dict[str, Tensor]]:
        size = self._broadcast(torch.zeros(1, dtype=torch.int64))
        told = self._broadcast(torch.empty(int(size), dtype=torch.uint8))
        version, about, expected = pickle.loads(told.numpy().tobytes())
        tensors: dict[str, Tensor] = {}
        for name, dtype, shape in about:
            tensors[name] = torch.empty(shape, dtype=dtype)
            self._broadcast(tensors[name].reshape(-1).view(torch.uint8))
        refuse_damaged("policy", version, tensors, expected)
        return version, tensors

    def _broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's, on all."""
        if not tensor.numel():
            return tensor
        options: Any = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise WeightsError(f"{BROKEN}: a member is gone, or did not answer in time: {error}") from error
        return tensor
