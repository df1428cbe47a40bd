"""AdamW with warm-up, clipping and fp32 masters, on parameters that stay where they are."""

import pytest
import torch
from torch import nn

from untail.config import LearnConfig
from untail.errors import WeightsError
from untail.learn.optimizer import Optimizer


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    sizes = {"matrix": (4, 3), "norm": (3,)}
    return {name: nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for name, size in sizes.items()}


def put_gradients(params: dict[str, nn.Parameter], seed: int, scale: float = 1.0) -> None:
    """Through autograd, as the trainer does it, so that hooks run."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in params.values():
        slope = scale * torch.randn(parameter.shape, generator=generator)
        (parameter * slope.to(parameter.dtype)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_torch_with_the_same_schedule(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    config = LearnConfig(lr=0.1, warmup_steps=3, weight_decay=0.5, max_grad_norm=1.0)
    optimizer = Optimizer(ours.items(), config)
    decays = [{"params": [theirs["matrix"]], "weight_decay": 0.5}, {"params": [theirs["norm"]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(decays, betas=config.betas, foreach=False)
    for step, share in enumerate([1 / 3, 2 / 3, 1, 1]):
        assert optimizer.lr == pytest.approx(0.1 * share)
        put_gradients(ours, step)
        put_gradients(theirs, step)
        expected_norm = nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        for members in reference.param_groups:
            members["lr"] = 0.1 * share
        reference.step()
        reference.zero_grad()
        norm, taken = optimizer.step()
        assert taken
        assert norm.item() == pytest.approx(expected_norm.item())
        for name, parameter in ours.items():
            torch.testing.assert_close(parameter, theirs[name])
            assert parameter.grad is None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad):
    params = parameters()
    optimizer = Optimizer(params.items(), LearnConfig(lr=0.1))
    put_gradients(params, 0)
    optimizer.step()
    before = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    put_gradients(params, 1)
    params["matrix"].grad[2, 1] = bad
    norm, taken = optimizer.step()
    assert not taken
    assert not norm.isfinite()
    assert optimizer.steps == 1
    for name, tensor in optimizer.tensors().items():
        assert torch.equal(tensor, before[name]), name
    assert params["matrix"].grad is None, "the bad gradient must not linger in the next step"


def test_a_master_keeps_what_low_precision_would_lose():
    """A step of 1e-4 on a weight of 1 vanishes in bf16; a hundred of them do not."""
    parameter = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    address = parameter.data_ptr()
    optimizer = Optimizer([("norm", parameter)], LearnConfig(lr=1e-4, warmup_steps=0))
    for _ in range(100):
        (parameter * torch.ones(8, dtype=torch.bfloat16)).sum().backward()
        assert parameter.grad is None, "the gradient moves to the master at once"
        optimizer.step()
    assert parameter.dtype == torch.bfloat16
    assert parameter.data_ptr() == address
    assert optimizer.tensors()["weight.norm"].dtype == torch.float32
    torch.testing.assert_close(parameter.float(), torch.full((8,), 0.99), atol=2e-3, rtol=0)


def test_micro_batches_are_summed_in_the_master():
    """256 + 1 is 256 in bf16; summed in fp32 it is not."""
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = Optimizer([("norm", parameter)], LearnConfig())
    for slope in (256.0, 1.0, 1.0):
        (parameter * slope).sum().backward()
    norm, _ = optimizer.step()
    assert norm.item() == pytest.approx(258 * 2**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_optimizer_goes_on_the_same(dtype):
    config = LearnConfig(lr=0.1, warmup_steps=4)
    straight, resumed = parameters(dtype), parameters(dtype)
    first = Optimizer(straight.items(), config)
    for step in range(2):
        put_gradients(straight, step)
        first.step()
    saved = {name: tensor.clone() for name, tensor in first.tensors().items()}
    second = Optimizer(resumed.items(), config)
    address = resumed["matrix"].data_ptr()
    second.load(saved, first.steps)
    for step in range(2, 5):
        for params, optimizer in ((straight, first), (resumed, second)):
            put_gradients(params, step)
            optimizer.step()
    assert second.steps == 5
    assert resumed["matrix"].data_ptr() == address
    for name, parameter in straight.items():
        assert torch.equal(parameter, resumed[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("exp_avg.norm"), "lacks tensor 'exp_avg.norm'"),
        (
            lambda saved: saved.update({"weight.norm": torch.zeros(9)}),
            r"'weight.norm' has shape \(9,\), .* needs \(3,\)",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, message):
    params = parameters()
    optimizer = Optimizer(params.items(), LearnConfig())
    saved = {name: tensor + 1 for name, tensor in optimizer.tensors().items()}
    change(saved)
    before = params["matrix"].clone()
    with pytest.raises(WeightsError, match=message):
        optimizer.load(saved, 3)
    assert torch.equal(params["matrix"], before)
    assert optimizer.steps == 0
