"""Dense layers: products, gradients, and initial weights."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from windrow.training import dense
from windrow.training.dense import (
    glorot,
    linear,
    make_linear,
    multiply,
    multiply_transposed,
    onednn_is_faster,
    product_flops,
)


@pytest.fixture(params=["oneDNN", "PyTorch's"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is faster here, both must be right."""
    monkeypatch.setattr(dense, "onednn_is_faster", lambda: request.param == "oneDNN")
    for limit in ("LEAST_PRODUCTS", "LEAST_WEIGHTS", "LEAST_ROWS"):
        monkeypatch.setattr(dense, limit, 1)


SHAPES = [(1, 1, 1), (7, 5, 3), (1030, 40, 17), (2500, 16, 256), (0, 4, 3)]


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_products(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = random(rows, inputs, seed=1), random(outputs, inputs, seed=2), random(outputs, seed=3)
    upstream = random(rows, outputs, seed=4)
    narrow = [tensor.to(dtype) for tensor in (x, weight, bias, upstream)]
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    product = multiply(*narrow[:3])
    torch.testing.assert_close(product.double(), functional.linear(x, weight, bias), **tolerance)
    torch.testing.assert_close(multiply(*narrow[:3], rectify=True), product.relu(), rtol=0, atol=0)
    product = multiply(narrow[3], narrow[1].t())
    torch.testing.assert_close(product.double(), upstream @ weight, **tolerance)
    product = multiply_transposed(narrow[3], narrow[0])
    torch.testing.assert_close(product.double(), upstream.t() @ x, **tolerance)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES[1:-1])
def test_flops_of_products(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = random(rows, inputs, seed=1, dtype=dtype), random(outputs, inputs, seed=2, dtype=dtype)
    with FlopCounterMode(display=False, custom_mapping=product_flops()) as counter:
        product = linear(x.requires_grad_(), weight.requires_grad_())
        assert counter.get_total_flops() == 2 * rows * inputs * outputs
        product.sum().backward()
    assert counter.get_total_flops() == 6 * rows * inputs * outputs


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients(dtype: torch.dtype, with_bias: bool, rectify: bool) -> None:
    leaves = [random(30, 6, seed=1), random(4, 6, seed=2), random(4, seed=3)][: 3 if with_bias else 2]
    upstream = random(30, 4, seed=4)
    results = []
    for function, precision in ((partial(linear, rectify=rectify), dtype), (functional.linear, torch.float64)):
        inputs = [leaf.to(precision).requires_grad_() for leaf in leaves]
        output = function(*inputs)
        if rectify and function is functional.linear:
            output = output.relu()
        results.append([output, *torch.autograd.grad(output, inputs, upstream.to(precision))])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("library")
def test_same_bits_every_time() -> None:
    x, upstream = (random(5000, 64, seed=seed, dtype=torch.float32) for seed in (1, 2))
    weight = random(64, 64, seed=3, dtype=torch.float32)
    assert torch.equal(multiply(x, weight), multiply(x, weight))
    assert torch.equal(multiply_transposed(upstream, x), multiply_transposed(upstream, x))


@pytest.mark.usefixtures("library")
def test_weights_that_are_slices_of_a_larger_matrix() -> None:
    x, whole = (random(*shape, seed=1, dtype=torch.float32) for shape in ((7, 16), (24, 64)))
    for weight in (whole[:, 16:32], whole[::2, 16:32], whole.t()[:, :16]):
        torch.testing.assert_close(multiply(x, weight, None), x @ weight.contiguous().t())


MANY_SHAPES = """
import random, torch
from windrow.training import dense
from windrow.training.dense import multiply, multiply_transposed
dense.onednn_is_faster = lambda: True
dense.LEAST_PRODUCTS = dense.LEAST_WEIGHTS = dense.LEAST_ROWS = 1
torch.set_num_threads(1)
choice, held = random.Random(2), []
generator = torch.Generator().manual_seed(1)
for _ in range(8000):
    rows = choice.choice([1, choice.randint(2, 30)])
    inputs = choice.choice([1, 2, 4, 5, 6, 8, 12, 16])
    outputs = choice.choice([1, choice.choice([2, 3, 4, 5, 8, 36])])
    x, weight, upstream = (
        torch.randn(*shape, generator=generator)
        for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    multiply(upstream, weight.t())
    multiply_transposed(upstream, x)
    held = [*held[-50:], torch.randn(choice.randint(1, 200), generator=generator)]
"""


def test_single_rows_leave_the_memory_of_others_alone() -> None:
    """Gradients of one row, between products with one column, once ended in a process with damaged memory."""
    subprocess.run([sys.executable, "-P", "-c", MANY_SHAPES], check=True, timeout=300)


@pytest.mark.parametrize(
    ("capability", "vendor", "allowed", "faster"),
    [
        ("AVX512", "AuthenticAMD", None, True),
        ("AVX2", "AuthenticAMD", None, False),
        ("AVX512", "GenuineIntel", None, False),
        ("AVX512", "GenuineIntel", "AVX512_E4", False),
        ("AVX512", "GenuineIntel", "AVX2", True),
        ("DEFAULT", "ARM", None, False),
    ],
)
def test_the_library_follows_from_the_processor(
    capability: str, vendor: str, allowed: str | None, faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onednn_is_faster.cache_clear()
    if allowed:
        monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", allowed)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nvendor_id : {vendor}\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn_is_faster(tmp_path / "cpuinfo") == faster
    assert not onednn_is_faster(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "goes"),
    [(4096, 64, 64, True), (256, 64, 64, False), (65_536, 16, 16, False), (1, 4096, 4096, False)],
)
def test_small_and_narrow_products_stay_with_mkl(
    rows: int, inputs: int, outputs: int, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense, "onednn_is_faster", lambda: True)
    product = linear(torch.ones(rows, inputs), torch.ones(outputs, inputs, requires_grad=True))
    assert (type(product.grad_fn).__name__ == "_LinearBackward") == goes
    assert torch.equal(product, torch.full((rows, outputs), float(inputs)))


def test_glorot_fills_its_range() -> None:
    weight = glorot(50, 100, generator=torch.Generator().manual_seed(0))
    bound = (6 / 150) ** 0.5
    assert weight.abs().max() <= bound
    assert weight.std() > 0.5 * bound


def test_linear_depends_on_the_generator_alone() -> None:
    first, second = (make_linear(5, 3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, torch.zeros(3))
    assert make_linear(5, 3, bias=False, generator=torch.Generator()).bias is None
    x = torch.linspace(-1, 1, 20).reshape(4, 5)
    torch.testing.assert_close(first(x), functional.linear(x, first.weight, first.bias))
    assert first(x[:0]).shape == (0, 3)
