"""Parameters spread over the ranks of a group (FSDP2), and the way back to whole weights.

Invariant: each rank holds its rows of every parameter in float32 or better, which is the master that the optimizer
steps on; layers are gathered in the module's own precision for as long as they compute. Gradients are summed over the
ranks in float32, not averaged: each rank's loss is its part of one sum.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from untail.engine.models.decoder import Decoder
from untail.engine.models.names import parts
from untail.learn.parts import whole_of


def shard_decoder(decoder: Decoder, group: ProcessGroup) -> None:
    """In place. Every rank of the group has to have the same weights, and makes the same passes from here on."""
    mesh, policy = _mesh(decoder, group), _policy(decoder)
    for layer in decoder.layers:
        _shard(layer, mesh, policy)
    _shard(decoder, mesh, policy)
    register_fsdp_forward_method(decoder, "run")
    decoder.is_sharded = True


def shard_module(module: nn.Module, group: ProcessGroup) -> None:
    """A small one, as a whole."""
    _shard(module, _mesh(module, group), _policy(module))


def full_weights(decoder: Decoder, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face's names and whole tensors, one parameter after the other; every rank has to take all of them."""
    put_back(decoder)
    for ours, pieces in parts(decoder.shape).items():
        whole = whole_of(decoder.get_parameter(ours).detach()).to(dtype)
        yield from zip((part.name for part in pieces), whole.split([part.rows for part in pieces]), strict=True)


def put_back(module: nn.Module) -> None:
    """Forget gathered parameters: after passes without a backward they are still there, and become stale."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _shard(module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    fully_shard(module, mesh=mesh, mp_policy=policy)
    assert isinstance(module, FSDPModule)
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo knows no other, and by 1 there is nothing to divide


def _mesh(module: nn.Module, group: ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, next(module.parameters()).device.type)


def _policy(module: nn.Module) -> MixedPrecisionPolicy:
    """Turns the module's parameters into masters."""
    dtype = next(module.parameters()).dtype
    if dtype in (torch.float32, torch.float64):
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    for parameter in module.parameters():
        parameter.data = parameter.data.float()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
