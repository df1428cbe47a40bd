"""The runner's attention is over whatever keys and values it is given."""

import torch
from tests.helpers.models import random_decoder

from untail.engine.blocks import BLOCK
from untail.engine.runner import Piece, Runner


def test_a_drafters_keys_may_be_in_another_precision_than_the_decoders():
    decoder = random_decoder("llama", dtype=torch.bfloat16)
    runner, shape = Runner(decoder, blocks=4), decoder.shape
    assert runner.kv.dtype == torch.float16
    layout = runner.lay_out([Piece([0], 3, [7]), Piece([2], 5, [9])])
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        own = torch.randn(1, 2, 4, BLOCK, shape.kv_heads, shape.head_dim).to(dtype)
        q, k, v = (torch.randn(2, n, shape.head_dim).to(dtype) for n in (shape.heads, shape.kv_heads, shape.kv_heads))
        out = runner.attend(layout, own)(0, q, k, v)
        assert out.dtype == dtype
        torch.testing.assert_close(own[0, 1, 2, 5], v[1])
