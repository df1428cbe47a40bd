"""Products of a few rows: what is ours is right, whatever rows are beside one, and in threads; the rest is torch's."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from untail.engine.models import few_rows
from untail.engine.models.few_rows import LEAST, MOST, is_ours, linear

needs_kernel = pytest.mark.skipif(
    not few_rows.IS_ARM or few_rows._kernel() is None, reason="the kernel is for Arm CPUs with LLVM and GCC's OpenMP"
)
INPUTS, OUTPUTS = 512, 514


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def matrix():
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))


def some_rows(count: int) -> torch.Tensor:
    return torch.randn(count, INPUTS, generator=torch.Generator().manual_seed(1))


@needs_kernel
@pytest.mark.parametrize("rows", range(1, MOST + 1))
def test_a_product_is_right_to_float32s_precision(matrix, rows):
    x = some_rows(rows)
    assert is_ours(x, matrix)
    exact = F.linear(x.double(), matrix.double())
    # The error of a sum in float32 grows with the sum of what is added up, not with what it comes to.
    allowed = 1e-6 * F.linear(x.double().abs(), matrix.double().abs())
    assert ((linear(x, matrix) - exact).abs() <= allowed).all()


@needs_kernel
def test_a_row_is_the_same_to_the_last_bit_whatever_is_beside_it(matrix):
    x = some_rows(MOST)
    alone = torch.cat([linear(x[row : row + 1], matrix) for row in range(MOST)])
    for count in range(1, MOST + 1):
        assert torch.equal(linear(x[:count], matrix), alone[:count])
        assert torch.equal(linear(x[-count:], matrix), alone[-count:])


@needs_kernel
def test_rows_need_not_lie_side_by_side(matrix):
    x = some_rows(6)
    apart = torch.cat((x, x), dim=1)[:, :INPUTS]
    assert not apart.is_contiguous()
    assert torch.equal(linear(apart, matrix), linear(x, matrix))


@needs_kernel
def test_threads_change_nothing(matrix):
    x, before = some_rows(5), torch.get_num_threads()
    alone = linear(x, matrix)
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(linear(x, matrix), alone)
    finally:
        torch.set_num_threads(before)


@needs_kernel
def test_several_threads_may_multiply_at_once(matrix):
    inputs = [some_rows(1 + number % 9) * (1 + number) for number in range(64)]
    expected = [linear(x, matrix) for x in inputs]

    def multiply(x):
        torch.set_num_threads(2)  # of its own: each that multiplies has a team
        with torch.no_grad():
            return linear(x, matrix)

    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, pool.map(multiply, inputs), expected))


@pytest.mark.parametrize(
    "case",
    [
        "gradients",
        "many rows",
        "no rows",
        "another dtype",
        "small",
        "odd inputs",
        "odd outputs",
        "transposed",
        "more axes",
    ],
)
def test_what_is_not_ours_is_torchs(matrix, monkeypatch, case):
    monkeypatch.setattr(few_rows, "IS_ARM", True)  # so that the case decides, on any machine
    x, weight = some_rows(3), matrix
    assert is_ours(x, weight)
    match case:
        case "many rows":
            x = some_rows(MOST + 1)
        case "no rows":
            x = x[:0]
        case "another dtype":
            x, weight = x.bfloat16(), weight.bfloat16()
        case "small":
            weight = matrix[: LEAST // INPUTS - 2]
        case "odd inputs":
            x, weight = x[:, :-1], torch.randn(1024, INPUTS - 1)
        case "odd outputs":
            weight = matrix[:-1]
        case "transposed":
            weight = torch.randn(INPUTS, OUTPUTS).T
        case "more axes":
            x = x[None]
    with torch.set_grad_enabled(case == "gradients"):
        assert not is_ours(x, weight)
        assert torch.equal(linear(x, weight), F.linear(x, weight))


def test_what_torch_refuses_is_refused(matrix, monkeypatch):
    monkeypatch.setattr(few_rows, "IS_ARM", True)
    with pytest.raises(RuntimeError):
        linear(some_rows(3)[:, : INPUTS // 2], matrix)


def test_a_tensor_without_memory_is_not_ours(matrix, monkeypatch):
    monkeypatch.setattr(few_rows, "IS_ARM", True)
    with FakeTensorMode() as mode:
        x, weight = mode.from_tensor(some_rows(3)), mode.from_tensor(matrix)
        assert linear(x, weight).shape == (3, OUTPUTS)


def test_without_llvm_torch_multiplies_and_that_is_said(matrix, monkeypatch, capsys):
    monkeypatch.setattr(few_rows, "IS_ARM", True)
    monkeypatch.setitem(sys.modules, "untail.engine.models.few_rows_kernel", None)
    few_rows._kernel.cache_clear()
    try:
        x = some_rows(3)
        assert torch.equal(linear(x, matrix), F.linear(x, matrix))
    finally:
        few_rows._kernel.cache_clear()
    assert "products of a few rows are torch's" in capsys.readouterr().err


def test_a_small_model_never_loads_llvm():
    code = "import sys, torch; from untail.engine.models import decoder, few_rows; torch.set_grad_enabled(False); "
    code += "few_rows.linear(torch.ones(2, 128), torch.ones(688, 128)); print('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
