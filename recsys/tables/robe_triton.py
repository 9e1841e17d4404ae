"""ROBE on GPUs: one program for each bag of a lookup, all columns at once; see `windrow.recsys.tables.robe_kernels`."""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from windrow.comm.quantize_triton import mix
from windrow.comm.random import GOLDEN

if TYPE_CHECKING:
    from windrow.recsys.tables.robe_kernels import Hashes

__all__ = ["add_to_array", "pool"]

_GOLDEN = tl.constexpr(GOLDEN)
_MERSENNE = tl.constexpr((1 << 61) - 1)
_COLUMNS_OF_A_WARP = 128
_MOST_WARPS = 8


def pool(
    array: Tensor,
    segments: Tensor,
    hashes: "Hashes",
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    width: int,
) -> Tensor:
    """The sums of all bags: [samples, columns of all lookups] float32.

    Args:
        array: [m] float32.
        segments: [lookups, 6] int64, on the CPU: those of `windrow.recsys.tables.robe_kernels`, and the first column
            of the result.
        hashes: likewise.
        values: [n] int64.
        offsets: [lookups * samples + 1] int64.
        weights: [n] float32, or None.
        width: columns of all lookups.
    """
    samples = (len(offsets) - 1) // len(segments)
    pooled = array.new_zeros(samples, width)
    _run(array, segments, hashes, values, offsets, weights, pooled, back=False)
    return pooled


def add_to_array(
    gradient: Tensor,
    segments: Tensor,
    hashes: "Hashes",
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    arriving: Tensor,
) -> None:
    """Add the gradients of the sums to those of the array, in any order; arguments are those of `pool`."""
    _run(gradient, segments, hashes, values, offsets, weights, arriving, back=True)


def _run(
    array: Tensor,
    segments: Tensor,
    hashes: "Hashes",
    values: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    pooled: Tensor,
    *,
    back: bool,
) -> None:
    samples, width = pooled.shape
    if not samples:
        return
    prime, per_row, per_block, span, inverse, block = (int(number) for number in hashes[:-1])
    columns = triton.next_power_of_2(int((segments[:, 4] - segments[:, 3]).max()))
    with torch.cuda.device_of(array):
        _bags[(samples, len(segments))](
            array,
            segments.to(array.device),
            per_row,
            per_block,
            span,
            inverse,
            len(array),
            values,
            offsets,
            values if weights is None else weights,
            pooled,
            samples,
            width,
            prime=prime,
            block=block,
            has_signs=hashes[-1],
            weighted=weights is not None,
            back=back,
            columns=columns,
            num_warps=max(1, min(_MOST_WARPS, columns // _COLUMNS_OF_A_WARP)),
        )


@triton.jit(do_not_specialize=["per_row", "per_block", "span", "inverse"])
def _bags(
    array: tl.tensor,
    segments: tl.tensor,
    per_row: tl.tensor,
    per_block: tl.tensor,
    span: tl.tensor,
    inverse: tl.tensor,
    size: tl.tensor,
    values: tl.tensor,
    offsets: tl.tensor,
    weights: tl.tensor,
    pooled: tl.tensor,
    samples: tl.tensor,
    width: tl.tensor,
    prime: tl.constexpr,
    block: tl.constexpr,
    has_signs: tl.constexpr,
    weighted: tl.constexpr,
    back: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    sample, lookup = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    segment = segments + 6 * lookup
    constant, key = tl.load(segment).to(tl.uint64), tl.load(segment + 1).to(tl.uint64)
    first_row, left, right = tl.load(segment + 2), tl.load(segment + 3), tl.load(segment + 4)
    own = tl.arange(0, columns)
    column = left + own
    inside = column < right
    target = pooled + sample * width + tl.load(segment + 5) + own
    of_block = _product((column // block).to(tl.uint64), per_block.to(tl.uint64), prime)
    total = tl.zeros((columns,), tl.float32)
    if back:
        total = tl.load(target, mask=inside, other=0)
    place, stop = tl.load(offsets + lookup * samples + sample), tl.load(offsets + lookup * samples + sample + 1)
    while place < stop:  # The interpreter has no ranges between numbers that are loaded.
        row = (tl.load(values + place) + first_row).to(tl.uint64)
        of_row = _sum(_product(row, per_row.to(tl.uint64), prime), constant, prime)
        there = _rest(_sum(of_row, of_block, prime), span.to(tl.uint64), inverse.to(tl.uint64)) + column % block
        there -= tl.where(there >= size, size, 0)
        factor = tl.full((columns,), 1.0, tl.float32)
        if has_signs:
            words = mix(mix(key ^ mix(row + _GOLDEN)) + (column >> 6).to(tl.uint64) * _GOLDEN)
            factor = 1.0 - 2.0 * ((words >> (column & 63).to(tl.uint64)) & 1).to(tl.float32)
        if weighted:
            factor *= tl.load(weights + place)
        if back:
            tl.atomic_add(array + there, factor * total, mask=inside)
        else:
            total += factor * tl.load(array + there, mask=inside, other=0)
        place += 1
    if not back:
        tl.store(target, total, mask=inside)


@triton.jit
def _product(number: tl.tensor, factor: tl.tensor, prime: tl.constexpr) -> tl.tensor:
    """``number * factor mod prime``, of numbers below the prime where it is 2**61 - 1, below 2**31 otherwise."""
    if prime != _MERSENNE:
        return number % prime * factor % prime
    # 2**61 is 1: the upper bits are added to the lower ones.
    low = number * factor
    total = (low & _MERSENNE) + ((tl.umulhi(number, factor) << 3) | (low >> 61))
    return total - tl.where(total >= _MERSENNE, _MERSENNE, 0)


@triton.jit
def _sum(one: tl.tensor, other: tl.tensor, prime: tl.constexpr) -> tl.tensor:
    """Of two numbers below the prime."""
    total = one + other
    return total - tl.where(total >= prime, prime, 0)


@triton.jit
def _rest(place: tl.tensor, span: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """``place mod span``; see `windrow.recsys.tables.robe_kernels`."""
    rest = place - tl.umulhi(place, inverse) * span
    return (rest - tl.where(rest >= span, span, 0)).to(tl.int64)
