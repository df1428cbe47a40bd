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
