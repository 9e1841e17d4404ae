"""The kernels behind `windrow.comm.quantize` for rows in GPU memory: one program for each row of a message.

They are written out beside those of `windrow.comm.quantize_kernels`, and come to the same bytes: whatever could be
rounded in two ways is an integer, a float64, or a division that is asked to round to nearest. A whole row is held in
registers, in tiles of 4 columns, which share a hash, then of 8, which end with a byte whatever their bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from windrow.comm.quantize_kernels import CONSTANT_ROW, LEAST_STEP
from windrow.comm.random import FIRST_MULTIPLIER, GOLDEN, SECOND_MULTIPLIER

__all__ = ["dequantize_rows", "mix", "quantize_rows"]

_FIRST = tl.constexpr(FIRST_MULTIPLIER)
_SECOND = tl.constexpr(SECOND_MULTIPLIER)
_GOLDEN = tl.constexpr(GOLDEN)
_CONSTANT_ROW = tl.constexpr(CONSTANT_ROW)
_LEAST_STEP = tl.constexpr(LEAST_STEP)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_COLUMNS_OF_A_WARP = 128
_MOST_WARPS = 8


def quantize_rows(
    rows: Tensor,
    positions: Tensor | None,
    bits: Tensor,
    offsets: Tensor,
    out: Tensor,
    *,
    key: int | None,
    row_ids: Tensor | None,
    ranges: Tensor | None,
) -> int:
    """Do what `windrow.comm.quantize.quantize` says, for n > 0. Returns the first row that it cannot do, or -1."""
    count, width = len(bits), rows.shape[1]
    first_bad = torch.full((1,), count, dtype=torch.int64, device=rows.device)
    drawn = key or 0
    signed_key = drawn - (1 << 64) if drawn >= 1 << 63 else drawn
    with torch.cuda.device_of(rows):
        _quantize[(count,)](
            rows.detach(),
            offsets if positions is None else positions,
            bits,
            offsets,
            offsets if row_ids is None else row_ids,
            signed_key,
            out,
            rows if ranges is None else ranges,
            first_bad,
            width,
            picks=positions is not None,
            measures=ranges is not None,
            nearest=key is None,
            eights=triton.next_power_of_2(triton.cdiv(width, 8)),
            num_warps=_warps(width),
        )
    bad = int(first_bad)
    return bad if bad < count else -1


def dequantize_rows(
    packed: Tensor, bits: Tensor, offsets: Tensor, out: Tensor, places: Tensor | None, *, add: bool
) -> None:
    """Do what `windrow.comm.quantize.dequantize` says, for n > 0."""
    width = out.shape[1]
    with torch.cuda.device_of(out):
        _dequantize[(len(bits),)](
            packed,
            bits,
            offsets,
            out.detach(),
            offsets if places is None else places,
            width,
            picks=places is not None,
            adds=add,
            columns=triton.next_power_of_2(width),
            num_warps=_warps(width),
        )


def _warps(width: int) -> int:
    warps: int = max(1, min(_MOST_WARPS, triton.next_power_of_2(width) // _COLUMNS_OF_A_WARP))
    return warps


@triton.jit(do_not_specialize=["key"])
def _quantize(
    rows: tl.tensor,
    positions: tl.tensor,
    bits: tl.tensor,
    offsets: tl.tensor,
    row_ids: tl.tensor,
    key: tl.tensor,
    out: tl.tensor,
    ranges: tl.tensor,
    first_bad: tl.tensor,
    width: tl.tensor,
    picks: tl.constexpr,
    measures: tl.constexpr,
    nearest: tl.constexpr,
    eights: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64)
    position = i
    if picks:
        position = tl.load(positions + i)
    four, lane = tl.arange(0, 2 * eights)[:, None], tl.arange(0, 4)[None, :]
    column = 4 * four + lane
    inside = column < width
    row = tl.load(rows + position * width + column, mask=inside, other=0)
    # Bits of floating-point numbers as integers in the same order: NaNs come before or after all numbers.
    ordered = _in_order(row.to(tl.int32, bitcast=True))
    lowest = tl.min(tl.ravel(tl.where(inside, ordered, 0x7FFFFFFF)), 0)
    highest = tl.max(tl.ravel(tl.where(inside, ordered, -0x80000000)), 0)
    low_bits, high_bits = _in_order(lowest), _in_order(highest)
    low, high = low_bits.to(tl.float32, bitcast=True), high_bits.to(tl.float32, bitcast=True)
    if ((low_bits & _MAGNITUDE) >= _INFINITY) | ((high_bits & _MAGNITUDE) >= _INFINITY):
        tl.atomic_min(first_bad, i)
    else:
        if measures:
            tl.store(ranges + i, high - low)
        width_bits = tl.load(bits + i).to(tl.int32)
        top = (1 << width_bits) - 1
        value = low_bits.to(tl.int64) & 0xFFFFFFFF
        is_constant = low == high
        step, step_bits, zero, zero_bits, is_finite = _choose_parameters(low_bits, high, top)
        # A constant row has only zeros as levels, but for one bit.
        zero, zero_bits = tl.where(is_constant, low, zero), tl.where(is_constant, value >> 16, zero_bits)
        if (is_finite | is_constant) == 0:
            tl.atomic_min(first_bad, i)
        else:
            draws = tl.full((2 * eights, 4), 0x8000, tl.int32)
            if not nearest:
                row_key = mix(key.to(tl.uint64) ^ mix(tl.load(row_ids + i).to(tl.uint64) + _GOLDEN))
                words = mix(row_key ^ mix(four.to(tl.uint64) + _GOLDEN))
                draws = ((words >> (16 * lane).to(tl.uint64)) & 0xFFFF).to(tl.int32)
            # What is outside of the row counts as its least entry.
            above = tl.where(inside, row, low) - zero
            levels = ((tl.div_rn(above, step) * 65536).to(tl.int32) + draws) >> 16
            levels = tl.where(inside, tl.minimum(levels, top), 0)
            levels += tl.where(column == 0, tl.where(is_constant, low_bits & 1, 0), 0)
            quarter = tl.sum(levels.to(tl.uint64) << (width_bits * lane).to(tl.uint64), 1)
            half = tl.arange(0, 2)[None, :]
            packed = tl.sum(tl.reshape(quarter, (eights, 2)) << (4 * width_bits * half).to(tl.uint64), 1)
            step_bits = tl.where(is_constant, _CONSTANT_ROW | ((value & 0xFFFF) >> 1), step_bits)
            start, stop = tl.load(offsets + i), tl.load(offsets + i + 1)
            header = (zero_bits << 16) | step_bits
            place = tl.arange(0, 4)
            tl.store(out + start + place, ((header >> (8 * place)) & 0xFF).to(tl.uint8))
            byte = tl.arange(0, 8)[None, :]
            target = start + 4 + tl.arange(0, eights)[:, None].to(tl.int64) * width_bits + byte
            parts = ((packed[:, None] >> (8 * byte).to(tl.uint64)) & 0xFF).to(tl.uint8)
            tl.store(out + target, parts, mask=(byte < width_bits) & (target < stop))


@triton.jit
def _dequantize(
    packed: tl.tensor,
    bits: tl.tensor,
    offsets: tl.tensor,
    out: tl.tensor,
    places: tl.tensor,
    width: tl.tensor,
    picks: tl.constexpr,
    adds: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64)
    place = i
    if picks:
        place = tl.load(places + i)
    start = tl.load(offsets + i)
    width_bits = tl.load(bits + i).to(tl.int32)
    step_bits = tl.load(packed + start).to(tl.int32) | (tl.load(packed + start + 1).to(tl.int32) << 8)
    zero_bits = tl.load(packed + start + 2).to(tl.int32) | (tl.load(packed + start + 3).to(tl.int32) << 8)
    is_constant = (step_bits & _CONSTANT_ROW) != 0
    lower = ((step_bits - _CONSTANT_ROW) << 1) | (tl.load(packed + start + 4).to(tl.int32) & 1)
    value = ((zero_bits << 16) | tl.where(is_constant, lower, 0)).to(tl.float32, bitcast=True)
    step = tl.where(is_constant, 0, step_bits << 16).to(tl.float32, bitcast=True)
    column = tl.arange(0, columns)
    inside = column < width
    bit = column * width_bits
    byte = tl.load(packed + start + 4 + (bit >> 3), mask=inside, other=0).to(tl.int32)
    level = (byte >> (bit & 7)) & ((1 << width_bits) - 1)
    decoded = value + level.to(tl.float32) * step
    target = out + place * width + column
    if adds:
        decoded += tl.load(target, mask=inside, other=0)
    tl.store(target, decoded, mask=inside)


@triton.jit
def _choose_parameters(low_bits: tl.tensor, high: tl.tensor, top: tl.tensor) -> tl.tuple:
    """Find step and zero point, their upper halves, and whether all that is decoded is finite."""
    zero_bits = ((low_bits.to(tl.int64) & 0xFFFFFFFF) + tl.where(low_bits < 0, 0xFFFF, 0)) >> 16
    zero = (zero_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    zero64, high64, top64 = zero.to(tl.float64), high.to(tl.float64), top.to(tl.float64)
    exact_step = ((high64 - zero64) / top64).to(tl.float32)
    step_bits = (exact_step.to(tl.int32, bitcast=True).to(tl.int64) + 0xFFFF) >> 16
    step_bits = tl.maximum(step_bits, _LEAST_STEP)
    step = (step_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    step_bits += tl.where(zero64 + top64 * step.to(tl.float64) < high64, 1, 0)
    step = (step_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    reach = top64 * step.to(tl.float64)
    is_finite = (reach <= _LARGEST) & (tl.abs(zero64 + reach) <= _LARGEST)
    return step, step_bits, zero, zero_bits, is_finite


@triton.jit
def _in_order(bits: tl.tensor) -> tl.tensor:
    """Bits of a float32 as an integer that is ordered as these are, or the other way round."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def mix(value: tl.tensor) -> tl.tensor:
    """Mix 64 bits; see `windrow.comm.random.mix64`."""
    value = (value ^ (value >> 30)) * _FIRST
    value = (value ^ (value >> 27)) * _SECOND
    return value ^ (value >> 31)
