"""Tensors that may be spread over ranks (DTensor), told apart without importing what makes them: that costs a second
which one rank alone need not pay."""

import torch
from torch import Tensor


def whole_of(tensor: Tensor) -> Tensor:
    """Gathered from all ranks, which all have to ask."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


@torch.no_grad()
def part_of(tensor: Tensor) -> Tensor:
    """What of it this rank holds: the very tensor, not a copy."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def spread_like(own: Tensor, whole: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has whole, where `own` is spread; else the tensor itself."""
    if getattr(own, "full_tensor", None) is None or getattr(whole, "full_tensor", None) is not None:
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    here = whole.to(own.device, own.dtype)
    return distribute_tensor(here, own.device_mesh, own.placements, src_data_rank=None)
