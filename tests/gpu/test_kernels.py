"""The kernels on a GPU, in float32 against the reference: `pytest -m gpu tests/gpu`."""

from dataclasses import replace

import pytest
import torch
from tests.helpers import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_attention_equals_sdpa(head_dim):
    kernels.check_attention("cuda", replace(kernels.SHAPES["llama"], head_dim=head_dim), kernels.SPANS)


@pytest.mark.parametrize(
    ("family", "kind", "rows"),
    [(f, "FusedStep", n) for f in ("llama", "qwen2") for n in (1, 2, 4)]
    + [(f, "PlainStep", n) for f in ("llama", "qwen2", "qwen3") for n in (1, 3, 8)],
)
def test_a_step_equals_the_decoder(family, kind, rows):
    kernels.check_step("cuda", kernels.SHAPES[family], kind, rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("family", "kind"), [("qwen2", "FusedStep"), ("qwen2", "PlainStep"), ("qwen3", "PlainStep")])
def test_a_step_in_half_precision_is_near_the_decoder_in_float32(family, kind, dtype):
    kernels.check_half_step("cuda", kernels.SHAPES[family], kind, 2, dtype)


def test_temperatures():
    kernels.check_temperatures("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients(dtype):
    kernels.check_gradients("cuda", dtype)
    kernels.check_operands("cuda", dtype)
    kernels.check_operands("cuda", dtype, head_dim=96)


def test_halves():
    kernels.check_halves("cuda")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_training_pass_in_half_precision_is_near_float32(family, dtype, recompute):
    kernels.check_training_pass("cuda", kernels.SHAPES[family], dtype, recompute)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_launches_of_several_steps(rows):
    kernels.check_launches("cuda", rows, steps=4)


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_several_tokens_of_a_row(family, width):
    kernels.check_width("cuda", kernels.SHAPES[family], width)
