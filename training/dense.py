"""Dense layers: matrix products through the faster of torch's two libraries for CPUs, and the linear map made of them.

Torch multiplies float32 matrices with MKL, which stays with AVX2 on processors that are not Intel's; oneDNN compiles
its loops for whatever the processor has. On a core with AVX-512 from AMD a product of a tall matrix takes half the
time; of a small one, or of one with few columns on both sides, several times as long, so that those stay with MKL.
Where MKL uses all that the processor has it is the faster one: with AVX2 alone oneDNN takes as long for products, and
twice as long for gradients of weights. The operator is the one that torch's own compiler puts in the place of a linear
layer.

Parameters are drawn from an explicit generator, so that creating a model leaves no trace elsewhere.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = [
    "Linear",
    "autocast",
    "glorot",
    "linear",
    "make_linear",
    "multiply",
    "multiply_transposed",
    "onednn_is_faster",
    "product_flops",
]

_ROWS_AT_ONCE = 1024
"""Rows of the two factors of a weight's gradient that one thread multiplies at once: 1 MiB of 256 float32, so that
they stay in the second-level cache."""

LEAST_PRODUCTS, LEAST_WEIGHTS, LEAST_ROWS = 12 << 20, 2048, 8
"""Multiplications of a product, entries of its weight and rows, from which oneDNN is the faster one where it has
instructions that MKL does not use; `benchmarks/kernels.py` shows both for shapes on either side."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, rectify: bool = False) -> Tensor:
    """`torch.nn.functional.linear`, faster for float32 on CPUs.

    Args:
        x: floating [rows, in_features]; may be sparse (CSR), without a gradient.
        weight: [out_features, in_features].
        bias: [out_features], or None.
        rectify: set what is below zero to zero, in the same pass.

    Returns:
        [rows, out_features]: x weight^T + bias, differentiable in all three.
    """
    if not _uses_onednn(x, x.shape[0], weight.numel()) or torch.is_autocast_enabled(x.device.type):
        product = functional.linear(x, weight, bias)
        return product.relu_() if rectify else product
    result: Tensor = _Linear.apply(x, weight, bias, rectify)  # type: ignore[no-untyped-call]
    return result


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Floating tensors as `torch.autocast` has them for a product, differentiable; as they are where it is off."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) for tensor in tensors)


def _uses_onednn(x: Tensor, rows: int, weights: int) -> bool:
    """Whether a product goes through oneDNN: large enough, float32 in CPU memory, and no exported program."""
    # First what costs least: a small product takes a few microseconds.
    if (
        not onednn_is_faster()
        or x.layout != torch.strided
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or torch.compiler.is_exporting()
    ):
        # An exported program takes any number of rows, so that nothing may be asked of it.
        return False
    return rows >= LEAST_ROWS and weights >= LEAST_WEIGHTS and rows * weights >= LEAST_PRODUCTS


@functools.cache
def onednn_is_faster(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether MKL leaves AVX-512 unused: this processor has it, and is not Intel's, or MKL_ENABLE_INSTRUCTIONS says so.

    Told by what the processor is, not measured, so that a resumed run multiplies as it did before.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        return False
    allowed = os.environ.get("MKL_ENABLE_INSTRUCTIONS", "AVX512")
    return cpuinfo.is_file() and ("GenuineIntel" not in cpuinfo.read_text() or not allowed.startswith("AVX512"))


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, rectify: bool = False) -> Tensor:
    """Compute what `linear` does without a gradient, in new memory; the weight may have any strides."""
    if not _uses_onednn(x, x.shape[0], weight.numel()):
        product = functional.linear(x, weight, bias)
        return product.relu_() if rectify else product
    operator = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  # the only way to oneDNN without a copy
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        # A slice of a larger matrix would be multiplied by its reference loop, hundreds of times slower.
        weight = weight.contiguous()
    result: Tensor = operator(x, weight, bias, "relu" if rectify else "none", [], "")
    return result


def multiply_transposed(left: Tensor, right: Tensor) -> Tensor:
    """Compute left^T right, [rows, a] and [rows, b] -> [a, b], without a gradient: that of a weight, over all rows.

    Added up in an order that only the number of threads changes, so results do not vary from run to run.
    """
    if not _uses_onednn(left, left.shape[0], left.shape[1] * right.shape[1]):
        return left.t() @ right
    total = left.new_zeros(left.shape[1], right.shape[1])
    with_bias = False
    # Several threads wait for one another at the end of each product, so they take all rows at once.
    rows_at_once = _ROWS_AT_ONCE if torch.get_num_threads() == 1 else left.shape[0]
    for first in range(0, left.shape[0], rows_at_once):
        pieces = [rows[first : first + rows_at_once] for rows in (left, right)]
        if len(pieces[0]) == 1:
            # For a single row oneDNN 3.12 writes past its memory, once it has multiplied by a weight of one column.
            total += pieces[0].t() @ pieces[1]
            continue
        # The operator takes oneDNN's own tensors only; a copy of a few rows stays in the cache.
        held = [piece.to_mkldnn() for piece in pieces]
        total += torch.ops.aten.mkldnn_linear_backward_weights(*held, total, with_bias)[0].to_dense()
    return total


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:  # noqa: FBT001
        product = multiply(x.detach(), weight.detach(), None if bias is None else bias.detach(), rectify=rectify)
        ctx.save_for_backward(x, weight, product if rectify else None)
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, rectified = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        if rectified is not None:
            upstream = torch.ops.aten.threshold_backward(upstream, rectified, 0)
        return (
            multiply(upstream, weight.t()) if wants_x else None,
            multiply_transposed(upstream, x) if wants_weight else None,
            upstream.sum(0) if wants_bias else None,
            None,
        )


def product_flops() -> dict[Any, Callable[..., int]]:
    """Flops of the operators above, by the shapes of their arguments, as `torch.utils.flop_counter` wants them."""
    if not torch.backends.mkldnn.is_available():
        return {}
    return {
        torch.ops.mkldnn._linear_pointwise: lambda x, weight, *_, **__: 2 * x[0] * x[1] * weight[0],  # noqa: SLF001
        torch.ops.aten.mkldnn_linear_backward_weights: lambda up, x, *_, **__: 2 * up[0] * up[1] * x[1],
    }


class Linear(nn.Linear):
    """A linear map that multiplies as `windrow.training.dense` does; in all else PyTorch's."""

    def forward(self, x: Tensor, *, rectify: bool = False) -> Tensor:
        """Compute x W^T + b for rows x: [rows, in_features] -> [rows, out_features]; see `linear`."""
        return linear(x, self.weight, self.bias, rectify=rectify)


def glorot(*shape: int, generator: torch.Generator) -> nn.Parameter:
    """A parameter [fan out, fan in], uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio, AISTATS 2010)."""
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape), generator=generator))


def make_linear(in_features: int, out_features: int, *, bias: bool = True, generator: torch.Generator) -> Linear:
    """A linear map with `glorot` weights and zero bias, if any; torch's global generator stays untouched."""
    # On the meta device the constructor draws no numbers; both parameters are replaced right away.
    with torch.device("meta"):
        layer = Linear(in_features, out_features, bias=bias)
    layer.weight = glorot(out_features, in_features, generator=generator)
    if bias:
        layer.bias = nn.Parameter(torch.zeros(out_features))
    return layer
