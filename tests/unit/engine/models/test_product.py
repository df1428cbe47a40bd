"""Products in half precision: nothing that leaves one is rounded, gradients are torch's, and float32 is as it was."""

import pytest
import torch
from tests.helpers.kernels import SHAPES, pair_of

from untail.engine.attention.varlen import VarlenAttention
from untail.engine.models.product import product, product_into

HALVES = [torch.bfloat16, torch.float16]


def operands(dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=random).to(dtype) for size in ((5, 64), (7, 64))]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("is_learning", [False, True])
def test_sums_are_not_rounded(dtype, is_learning):
    x, weight = operands(dtype)
    onto = torch.randn(5, 7)
    with torch.set_grad_enabled(is_learning):
        torch.testing.assert_close(product(x, weight), x.float() @ weight.float().T)
        torch.testing.assert_close(product(x, weight, onto), onto + x.float() @ weight.float().T)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_gradients_are_those_of_the_plain_product(dtype):
    x, weight = (one.requires_grad_() for one in operands(dtype))
    onto, slope = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7)
    ours = torch.autograd.grad((product(x, weight, onto) * slope).sum(), (x, weight, onto))
    plain = [one.detach().float().requires_grad_() for one in (x, weight, onto)]
    theirs = torch.autograd.grad(((plain[0] @ plain[1].T + plain[2]) * slope).sum(), plain)
    for one, other, given in zip(ours, theirs, (x, weight, onto), strict=True):
        assert one.dtype == given.dtype
        torch.testing.assert_close(one.float(), other, atol=0.05 if dtype != torch.float32 else 1e-5, rtol=0.02)


def test_a_product_in_place_takes_the_place_of_what_is_there_or_adds_to_it():
    x, weight = operands(torch.float32)
    out = torch.full((5, 7), 3.0)
    product_into(out, x, weight, add=True)
    torch.testing.assert_close(out, 3 + x @ weight.T)
    product_into(out, x, weight)
    torch.testing.assert_close(out, x @ weight.T)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("wide", [False, True])
def test_a_decoder_in_half_precision_keeps_its_residual_stream_in_float32(monkeypatch, family, wide):
    """So that a small addend is not lost beside a large one: here the first layer's, beside an embedding of 300."""
    monkeypatch.setattr("untail.engine.models.product.WIDE", 16 if wide else 2048)
    exact, half = pair_of(SHAPES[family], "cpu", torch.bfloat16)
    for one in (exact, half):
        one.embed[:, 0] = 300.0
    ids, cos, sin = torch.arange(9), *exact.rope_table[torch.arange(9)].unbind(1)
    attention = VarlenAttention([9])
    of_half, of_exact = (one.layer(0, one.embedded(ids), cos, sin, attention) for one in (half, exact))
    assert of_half.dtype == torch.float32
    torch.testing.assert_close(of_half, of_exact, atol=0.1, rtol=0)  # a bit of bf16 is 2 at 300
    assert half(ids, torch.arange(9), attention).dtype == torch.bfloat16
