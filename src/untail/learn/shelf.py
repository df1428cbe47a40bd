"""Tensors that only the update needs, put away in host memory while the GPU's is wanted for something else.

Invariant: the tensor objects stay the same; only where their values lie changes. Values come back bit for bit. On a CPU
there is nothing to gain, and nothing moves.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from untail.learn.parts import part_of


class Shelf:
    """The host memory is pinned, so that copies run at the bus's speed, and kept from one time to the next: to pin it
    costs more than the copy."""

    def __init__(self, tensors: Iterable[Tensor]):
        self._tensors = [part_of(tensor) for tensor in tensors if tensor.device.type == "cuda"]
        self._devices = [tensor.device for tensor in self._tensors]
        self._host: list[Tensor] = []
        self.holds = False

    @property
    def bytes(self) -> int:
        """What leaves the GPU, or has left it."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)

    @torch.no_grad()
    def put_away(self) -> None:
        if self.holds or not self._tensors:
            return
        if not self._host:
            self._host = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in self._tensors]
        for tensor, host in zip(self._tensors, self._host, strict=True):
            host.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize(self._devices[0])  # before the memory that is being read is somebody else's
        for tensor, host in zip(self._tensors, self._host, strict=True):
            tensor.data = host
        torch.cuda.empty_cache()
        self.holds = True

    @torch.no_grad()
    def take_back(self) -> None:
        if not self.holds:
            return
        for tensor, host, device in zip(self._tensors, self._host, self._devices, strict=True):
            tensor.data = host.to(device, non_blocking=True)
        torch.cuda.synchronize(self._devices[0])
        self.holds = False
