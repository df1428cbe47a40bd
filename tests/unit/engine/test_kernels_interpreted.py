"""The GPU kernels in Triton's interpreter: the same checks as on a GPU, on sizes that it can do.

In processes of their own: Triton decides when it is imported whether it interprets.
"""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: pip install 'triton>=3.9'", allow_module_level=True)
if tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < (3, 9):
    pytest.skip("the interpreter of triton before 3.9 fails with numpy 2.4", allow_module_level=True)


def errors(*checks: str) -> str:
    """What the checks say when one of them fails, and nothing when all hold."""
    program = "\n".join(["from tests.helpers.kernels import *", *checks])
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    return f"exit {done.returncode}: {done.stderr}" if done.returncode else ""


def test_attention_equals_sdpa():
    assert not errors("check_attention('cpu', SHAPES['llama'], SPANS)")


def test_a_step_equals_the_decoder():
    assert not errors(
        "check_step('cpu', SHAPES['qwen2'], 'FusedStep', 1)",
        "check_step('cpu', SHAPES['llama'], 'FusedStep', 2)",
        "check_step('cpu', SHAPES['qwen3'], 'PlainStep', 3)",
    )


def test_a_step_in_half_precision_is_near_the_decoder_in_float32():
    assert not errors(
        "check_half_step('cpu', SHAPES['qwen2'], 'FusedStep', 1, torch.bfloat16)",
        "check_half_step('cpu', SHAPES['qwen2'], 'PlainStep', 3, torch.float16)",
        "check_half_step('cpu', SHAPES['qwen3'], 'PlainStep', 3, torch.bfloat16)",
        "check_half_step('cpu', SHAPES['llama'], 'PlainStep', 2, torch.bfloat16, wide=16)",
    )


def test_temperatures():
    assert not errors("check_temperatures('cpu')")


def test_gradients():
    # The interpreter cuts bf16 off where a GPU rounds it.
    assert not errors("check_gradients('cpu', torch.float32)", "check_gradients('cpu', torch.float16)")
    assert not errors("check_operands('cpu', torch.float32)", "check_operands('cpu', torch.float16, head_dim=12)")


def test_halves():
    assert not errors("check_halves('cpu')")


def test_a_training_pass_in_half_precision_is_near_float32():
    assert not errors(
        *(f"check_training_pass('cpu', SHAPES['{family}'], torch.float16)" for family in ("qwen2", "qwen3"))
    )


@pytest.mark.slow
def test_launches_of_several_steps():
    assert not errors("check_launches('cpu', count=2, steps=2)")


def test_several_tokens_of_a_row():
    assert not errors("check_width('cpu', SHAPES['llama'], 2)")
