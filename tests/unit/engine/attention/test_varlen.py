"""Packed attention against a dense mask, forward and backward, in the head shapes of the model families."""

import pytest
import torch
from tests.unit.learn.helpers import DenseAttention

from untail.engine.attention.varlen import SharedPrefixAttention, VarlenAttention

HEADS = {"tiny": (4, 4, 32), "llama": (6, 2, 8), "qwen2": (14, 2, 64), "qwen3": (16, 8, 128), "smollm2": (9, 3, 64)}
LENGTHS = {"mixed": [1, 5, 5, 5, 33, 2, 70, 70, 1], "one": [40], "one token": [1], "all equal": [9] * 6}


def random_qkv(tokens: int, heads: tuple[int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    query_heads, kv_heads, size = heads
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(tokens, count, size) for count in (query_heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def output_and_gradients(attention, qkv):
    out = attention(0, *qkv)
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * slope).sum(), qkv)]


def dense(lengths):
    def attention(layer, *qkv):
        return torch.cat(
            [DenseAttention()(layer, *part) for part in zip(*(x.split(lengths) for x in qkv), strict=True)]
        )

    return attention


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_equals_a_dense_mask(lengths, heads, dtype, tolerance):
    qkv = random_qkv(sum(lengths), heads, dtype)
    ours, theirs = (output_and_gradients(attention, qkv) for attention in (VarlenAttention(lengths), dense(lengths)))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=tolerance, rtol=tolerance)


def test_views_of_one_projection_are_taken_as_they_are():
    """The decoder hands in slices of one qkv tensor, which are not contiguous."""
    lengths = [3, 3, 8]
    qkv = torch.randn(sum(lengths), 10, 8, dtype=torch.float64)
    views = qkv.split((6, 2, 2), dim=1)
    torch.testing.assert_close(VarlenAttention(lengths)(0, *views), dense(lengths)(0, *views))


def test_a_shared_prefix_equals_whole_sequences():
    """Packed: prompt (3), response a (2), response b (4). Whole: prompt + a, prompt + b."""
    prompt, a, b = torch.arange(3), torch.arange(3, 5), torch.arange(5, 9)
    unrolled = torch.cat((prompt, a, prompt, b))
    home = torch.tensor([0, 1, 2, 3, 4, 8, 9, 10, 11])
    qkv = random_qkv(9, HEADS["llama"], torch.float64)
    shared = SharedPrefixAttention(VarlenAttention([5, 7]), unrolled, home)

    def whole(layer, *packed):
        return dense([5, 7])(layer, *(x[unrolled] for x in packed))[home]

    for mine, reference in zip(output_and_gradients(shared, qkv), output_and_gradients(whole, qkv), strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-12, rtol=1e-12)
