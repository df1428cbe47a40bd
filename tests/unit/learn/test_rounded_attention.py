"""Attention of the learner in half precision: rounded as the engine rounds, with gradients of any size."""

import pytest
import torch
from tests.helpers.kernels import SHAPES, make_decoder

from untail.engine.attention.varlen import VarlenAttention
from untail.engine.models import product
from untail.engine.models.decoder import Decoder
from untail.learn.attention import Rounded

LENGTHS = [5, 5, 9]


def given() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(sum(LENGTHS), heads, 16, generator=random, requires_grad=True) for heads in (6, 2, 2)]


class Seen:
    """An attention that remembers the precision of what it was given."""

    def __init__(self):
        self.attention, self.dtypes = VarlenAttention(LENGTHS), set()

    def __call__(self, layer, *qkv):
        self.dtypes |= {x.dtype for x in qkv}
        return self.attention(layer, *qkv)


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_operands_are_fp16_and_the_output_is_as_its_product_takes_it(monkeypatch, weights, wide):
    monkeypatch.setattr(product, "WIDE", 16 if wide else 2048)
    seen, decoder = Seen(), Decoder(SHAPES["llama"], "cpu", weights)
    out = Rounded(seen, decoder)(0, *given())
    assert (seen.dtypes, out.dtype) == (
        {torch.float16},
        torch.float32 if weights == torch.bfloat16 and not wide else weights,
    )


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_gradients_neither_vanish_nor_overflow(size):
    qkv, decoder = given(), Decoder(SHAPES["llama"], "cpu", torch.bfloat16)
    slope = size * torch.randn(sum(LENGTHS), 96, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((Rounded(VarlenAttention(LENGTHS), decoder)(0, *qkv) * slope).sum(), qkv)
    theirs = torch.autograd.grad((VarlenAttention(LENGTHS)(0, *qkv) * slope).sum(), qkv)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()


def test_without_a_gradient_there_is_none():
    qkv, decoder = given(), Decoder(SHAPES["llama"], "cpu", torch.bfloat16)
    gradients = torch.autograd.grad((Rounded(VarlenAttention(LENGTHS), decoder)(0, *qkv) * 0).sum(), qkv)
    assert not any(one.any() for one in gradients)


def test_float32_is_left_as_it_is():
    seen, qkv = Seen(), given()
    out = Rounded(seen, make_decoder(SHAPES["llama"], "cpu"))(0, *qkv)
    assert seen.dtypes == {torch.float32}
    assert torch.equal(out, VarlenAttention(LENGTHS)(0, *qkv))
