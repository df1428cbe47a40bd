"""Weights from one process to many over torch.distributed: for hosts that share no memory, and from GPU to GPU.

    Exchange(address, 0, 3).send(7, weights)         # rank 0
    version, weights = Exchange(address, 1, 3).receive()

On a GPU tensors go by NCCL and never through the host's memory; else by gloo. All but the backend and the device is the
same.

Invariant: a receiver has a version whole, with the checksum that its sender told before it, or an error; nothing that
it uses is written to meanwhile. Once a member is gone, or too slow, the exchange is of no use to anybody: everybody
hears an error, and those who are left make another. NCCL's waits cannot be broken off: torch ends a process that stands
in one for too long, and whoever started it starts another.
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

CPU = torch.device("cpu")
PATIENCE_S = 60.0
BROKEN = "the exchange of weights is broken"


class Exchange:
    def __init__(self, address: str, rank: int, world: int, device: torch.device = CPU, patience_s: float = PATIENCE_S):
        """All members at once; rank 0 sends, and its host has this address free. `device`: where weights are sent from
        and received; no two members have the same GPU."""
        host, _, port = address.rpartition(":")
        patience = timedelta(seconds=patience_s)
        self._device = device
        try:
            store = TCPStore(host, int(port), world, is_master=rank == 0, timeout=patience)
            self._group: Any = (_nccl if device.type == "cuda" else ProcessGroupGloo)(store, rank, world, patience)
        except RuntimeError as error:
            missing = f"member {rank} of {world} found not all of them at {address}"
            raise WeightsError(f"{BROKEN}: {missing}: {error}") from error

    def send(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        whole = {name: tensor.detach().to(self._device).contiguous() for name, tensor in tensors.items()}
        about = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in whole.items()]
        expected = checksum(whole, self._device.type != "cpu")
        told = torch.frombuffer(bytearray(pickle.dumps((version, about, expected))), dtype=torch.uint8)
        self._broadcast(torch.tensor([len(told)], device=self._device))
        self._broadcast(told.to(self._device))
        for tensor in whole.values():
            self._broadcast(tensor.reshape(-1).view(torch.uint8))

    def receive(self) -> tuple[int, dict[str, Tensor]]:
        size = self._broadcast(torch.zeros(1, dtype=torch.int64, device=self._device))
        told = self._broadcast(torch.empty(int(size), dtype=torch.uint8, device=self._device))
        version, about, expected = pickle.loads(told.cpu().numpy().tobytes())
        tensors: dict[str, Tensor] = {}
        for name, dtype, shape in about:
            tensors[name] = torch.empty(shape, dtype=dtype, device=self._device)
            self._broadcast(tensors[name].reshape(-1).view(torch.uint8))
        refuse_damaged("policy", version, tensors, expected, self._device.type != "cpu")
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


def _nccl(store: TCPStore, rank: int, world: int, patience: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL  # torch has it only where it was built for GPUs

    options = ProcessGroupNCCL.Options()
    options._timeout = patience
    return ProcessGroupNCCL(store, rank, world, options)
