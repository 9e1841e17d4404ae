"""The kernels behind `windrow.comm.quantize` for rows in GPU memory: one program for some rows of a message.

They are written out beside those of `windrow.comm.quantize_kernels`, and come to the same bytes: whatever could be
rounded in two ways is an integer, a float64, or exact. A few threads hold a row that is quantised, each some times 8
neighbouring columns, so that it is read once and whole bytes are written. What takes time is arithmetic, and of that
what is done once for a row, such as choosing its step: the fewer threads share it, the fewer do that again. Loops over
the entries that a thread holds are written out, so that the first message of a width takes seconds to compile.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from windrow.comm.quantize_kernels import CONSTANT_ROW, LEAST_STEP
from windrow.comm.random import FIRST_MULTIPLIER, GOLDEN, MULTIPLIERS_32, SECOND_MULTIPLIER

__all__ = ["dequantize_rows", "mix", "quantize_rows"]

_FIRST = tl.constexpr(FIRST_MULTIPLIER)
_SECOND = tl.constexpr(SECOND_MULTIPLIER)
_FIRST_32, _SECOND_32 = map(tl.constexpr, MULTIPLIERS_32)
_GOLDEN = tl.constexpr(GOLDEN)
_CONSTANT_ROW = tl.constexpr(CONSTANT_ROW)
_LEAST_STEP = tl.constexpr(LEAST_STEP)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITY = tl.constexpr(0x7F800000)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_THREADS, _MOST_THREADS = 128, 1024
"""Of a program, and of one for a single long row."""
_ENTRIES = 40
"""Of a row that is quantised, the most that a thread holds, unless that takes more than the most threads."""
_READ_ROWS, _READ_COLUMNS = tl.constexpr(8), tl.constexpr(64)
"""Of a program that dequantises: rows, and columns at a time."""


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
    eights = max(2, min(_MOST_THREADS, triton.next_power_of_2(triton.cdiv(width, _ENTRIES))))
    threads = max(_THREADS, eights)
    with torch.cuda.device_of(rows):
        column_keys = offsets
        if key is not None:
            of_pairs = torch.empty(triton.cdiv(width, 8 * eights) * eights * 4, dtype=torch.int32, device=rows.device)
            column_keys = of_pairs.view(torch.int64)
            _mix_columns[(triton.cdiv(len(of_pairs), _THREADS),)](of_pairs, len(of_pairs), block=_THREADS)
        _quantize[(triton.cdiv(count, threads // eights),)](
            rows.detach(),
            offsets if positions is None else positions,
            bits,
            offsets,
            offsets if row_ids is None else row_ids,
            column_keys,
            signed_key,
            out,
            rows if ranges is None else ranges,
            first_bad,
            count,
            width,
            picks=positions is not None,
            measures=ranges is not None,
            nearest=key is None,
            # Whatever their bits, all rows of such a message are multiples of 4 bytes.
            aligned=width % 32 == 0 and out.data_ptr() % 4 == 0,
            eights=eights,
            at_once=threads // eights,
            num_warps=threads // 32,
        )
    bad = int(first_bad)
    return bad if bad < count else -1


def dequantize_rows(
    packed: Tensor, bits: Tensor, offsets: Tensor, out: Tensor, places: Tensor | None, *, add: bool
) -> None:
    """Do what `windrow.comm.quantize.dequantize` says, for n > 0."""
    width = out.shape[1]
    with torch.cuda.device_of(out):
        _dequantize[(triton.cdiv(len(bits), _READ_ROWS.value),)](
            packed,
            bits,
            offsets,
            out.detach(),
            offsets if places is None else places,
            len(bits),
            width,
            picks=places is not None,
            adds=add,
            num_warps=_THREADS // 32,
        )


@triton.jit(do_not_specialize=["key", "count"])
def _quantize(
    rows: tl.tensor,
    positions: tl.tensor,
    bits: tl.tensor,
    offsets: tl.tensor,
    row_ids: tl.tensor,
    column_keys: tl.tensor,
    key: tl.tensor,
    out: tl.tensor,
    ranges: tl.tensor,
    first_bad: tl.tensor,
    count: tl.tensor,
    width: tl.constexpr,
    picks: tl.constexpr,
    measures: tl.constexpr,
    nearest: tl.constexpr,
    aligned: tl.constexpr,
    eights: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    here = i < count
    position = tl.where(here, i, 0)
    if picks:
        position = tl.load(positions + i, mask=here, other=0)
    width_bits = tl.load(bits + i, mask=here, other=1).to(tl.int32)
    start, stop = tl.load(offsets + i, mask=here, other=0), tl.load(offsets + i + 1, mask=here, other=0)
    row_key = tl.zeros((at_once,), tl.uint64)
    if not nearest:
        row_id = tl.load(row_ids + i, mask=here, other=0)
        row_key = mix(key.to(tl.uint64) ^ mix(row_id.to(tl.uint64) + _GOLDEN))
    entries = _read(rows + position * width, width, eights, at_once, aligned)
    low_bits, high_bits = _extremes(entries)
    is_number = ((low_bits & _MAGNITUDE) < _INFINITY) & ((high_bits & _MAGNITUDE) < _INFINITY)
    low = tl.where(is_number, low_bits, 0).to(tl.float32, bitcast=True)
    high = tl.where(is_number, high_bits, 0).to(tl.float32, bitcast=True)
    if measures:
        tl.store(ranges + i, high - low, mask=here)
    top = (1 << width_bits) - 1
    is_constant = low == high
    step, step_bits, zero, zero_bits, is_finite = _choose_parameters(low, high, width_bits)
    fits = is_number & (is_finite | is_constant)
    tl.atomic_min(first_bad + tl.zeros_like(i), i, mask=here & (fits == 0), sem="relaxed")
    here = here & fits
    # A constant row has only zeros as levels, but for the first entry, which has the lowest bit of the value.
    value = low_bits.to(tl.int64) & 0xFFFFFFFF
    zero, zero_bits = tl.where(is_constant, low, zero), tl.where(is_constant, value >> 16, zero_bits)
    step_bits = tl.where(is_constant, _CONSTANT_ROW | ((value & 0xFFFF) >> 1), step_bits)
    first_level = tl.where(is_constant, low_bits & 1, 0)[None, :]
    _store_bytes(out + start, (zero_bits << 16) | step_bits, 4, aligned, here, 4)
    scale = _scale(step, zero, is_constant)
    shift = width_bits[None, :]
    packed_row, length = (out + start + 4)[None, :], (stop - start - 4).to(tl.int32)[None, :]
    before = tl.zeros((eights, at_once), tl.int32)
    for part in tl.static_range((width + 8 * eights - 1) // (8 * eights) * 2):
        four = _four(part, eights, aligned)[:, None]
        drawn = _draw(column_keys + four, row_key[None, :], nearest, eights, at_once)
        packed = tl.where(four == 0, first_level, 0)
        for lane in tl.static_range(4):
            level = _round(entries[4 * part + lane], (drawn[lane // 2] >> (16 * (lane % 2))) & 0xFFFF, scale, top)
            if width % 8 != 0 and (part // 2 + 1) * 8 * eights > width:
                level = tl.where(4 * four + lane < width, level, 0)
            packed += level << (lane * shift)
        inside, byte = here[None, :] & (4 * four < width), (four * shift) >> 1
        if not aligned:
            # Four entries of one bit are half a byte: the first half has the other one's levels too.
            size, packed = tl.where(shift > 1, shift >> 1, 1 - four % 2), tl.where(shift > 1, packed, _pair(packed))
            _store_bytes(packed_row + byte, packed, size, aligned, inside, length - byte)
        elif part % 2 == 1:
            byte = (four // 2) * shift
            first = before | tl.where(shift < 8, packed << (4 * shift), 0)
            _store_bytes(packed_row + byte, first, tl.minimum(shift, 4), aligned, inside, length - byte)
            _store_bytes(packed_row + byte + 4, packed, 4, aligned, inside & (shift == 8), length - byte - 4)
        before = packed


@triton.jit
def _four(part: tl.constexpr, eights: tl.constexpr, aligned: tl.constexpr) -> tl.tensor:
    """Which four of a row's columns each thread has in a part of them: [eights].

    Two parts are neighbours where what they are packed into is stored together; else threads are, whose stores, byte by
    byte, are of one stretch of memory then.
    """
    thread = tl.arange(0, eights)
    return 2 * (part // 2 * eights + thread) + part % 2 if aligned else part * eights + thread


@triton.jit
def _pair(packed: tl.tensor) -> tl.tensor:
    """Of four bits of each thread, and of its neighbour, one byte, which both get."""
    eights: tl.constexpr = packed.shape[0]
    at_once: tl.constexpr = packed.shape[1]
    half = tl.arange(0, 2)[None, :, None]
    pair = tl.sum(tl.reshape(packed, (eights // 2, 2, at_once)) << (4 * half), 1)
    return tl.reshape(tl.broadcast_to(pair[:, None, :], (eights // 2, 2, at_once)), (eights, at_once))


@triton.jit
def _draw(
    keys: tl.tensor, row_key: tl.tensor, nearest: tl.constexpr, eights: tl.constexpr, at_once: tl.constexpr
) -> tl.tuple:
    """16 bits for each of four columns, in two numbers of 32: halves, where nothing is drawn."""
    first = tl.full((eights, at_once), 0x80008000, tl.uint32)
    second = first
    if not nearest:
        key, of_pairs = (row_key >> 32).to(tl.uint32), tl.load(keys).to(tl.uint64, bitcast=True)
        first = _mix32(of_pairs.to(tl.uint32) ^ row_key.to(tl.uint32), key)
        second = _mix32((of_pairs >> 32).to(tl.uint32) ^ row_key.to(tl.uint32), key)
    return first, second


@triton.jit
def _scale(step: tl.tensor, zero: tl.tensor, is_constant: tl.tensor) -> tl.tuple:
    """What to multiply a row by, the zero point then, what one drawn value is, and about its inverse: each [1, rows].

    The step's power of two, halved, is the unit: the step is in [2, 4) then, nothing overflows, and no bit is lost.
    """
    exponent, fraction = step.to(tl.int32, bitcast=True) >> 23, step.to(tl.int32, bitcast=True) & 0x7FFFFF
    unit = tl.where(is_constant, 0, (255 - exponent) << 23).to(tl.float32, bitcast=True)
    draw = (((128 - 16) << 23) | fraction).to(tl.float32, bitcast=True)
    return unit[None, :], (zero * unit)[None, :], draw[None, :], (1 / draw)[None, :]


@triton.jit
def _round(entry: tl.tensor, drawn: tl.tensor, scale: tl.tuple, top: tl.tensor) -> tl.tensor:
    """The level of an entry, up to the top one."""
    unit, zero, draw, per_draw = scale
    fixed = _divide(entry * unit - zero, draw, per_draw).to(tl.int32)
    return tl.minimum((fixed + drawn.to(tl.int32)) >> 16, top[None, :])


@triton.jit
def _divide(number: tl.tensor, divisor: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """What float32 rounds the quotient to, for a divisor of 8 bits and about its inverse, in six fast instructions.

    The first 16 bits of a guess times the divisor are exact, fused with an addition or not, and so is what that leaves
    of the number. No quotient by 8 bits is nearer than 2 ** -9 of its last bit to where it would round the other way.
    """
    # As a sum, so that the product is rounded before it goes into another one.
    guess = tl.fma(number, inverse, tl.zeros_like(number))
    upper = (guess.to(tl.int32, bitcast=True) & -256).to(tl.float32, bitcast=True)
    return guess + ((number - upper * divisor) - (guess - upper) * divisor) * inverse


@triton.jit
def _mix_columns(keys: tl.tensor, count: tl.tensor, block: tl.constexpr) -> None:
    """The part of the hash of each two columns that all rows share."""
    pair = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(keys + pair, mix(pair.to(tl.uint64) + _GOLDEN).to(tl.uint32).to(tl.int32, bitcast=True), mask=pair < count)


@triton.jit
def _read(
    row: tl.tensor, width: tl.constexpr, eights: tl.constexpr, at_once: tl.constexpr, aligned: tl.constexpr
) -> tl.tuple:
    """Every entry of each row: for each part of it four times [eights, rows], neighbouring columns.

    Behind the row's end its first entry comes again. They are loaded four at a time where rows begin at multiples of 16
    bytes, else two where of 8, else one by one.
    """
    outside = tl.load(row)[None, :, None]
    found = ()
    for part in tl.static_range((width + 8 * eights - 1) // (8 * eights) * 2):
        last = (part // 2 + 1) * 8 * eights > width
        column = 4 * _four(part, eights, aligned)[:, None, None]
        if width % 4 == 0:
            place = row[None, :, None] + column + tl.arange(0, 4)[None, None, :]
            four = tl.load(place, mask=column < width, other=outside) if last else tl.load(place)
            even, odd = tl.split(tl.reshape(four, (eights, at_once, 2, 2)))
            a, c = tl.split(even)
            b, d = tl.split(odd)
        else:
            column += tl.arange(0, 2)[None, None, :]
            a, b = tl.split(tl.load(row[None, :, None] + column, mask=column < width, other=outside))
            column += 2
            c, d = tl.split(tl.load(row[None, :, None] + column, mask=column < width, other=outside))
        found = found + (a, b, c, d)  # type: ignore[assignment]  # noqa: RUF005  # compiled, where tuples may grow
    return found


@triton.jit
def _extremes(entries: tl.tuple) -> tl.tuple:
    """Bits of the least and the greatest entry of each row: [rows]. Of a row with NaNs one of them is a NaN's.

    Bits of float32 are in their order as integers, but negative ones in the opposite one, before the others where they
    have signs and behind them where they have none.
    """
    lowest = entries[0].to(tl.int32, bitcast=True)
    highest, last = lowest, lowest.to(tl.uint32, bitcast=True)
    for number in tl.static_range(1, len(entries)):
        bits = entries[number].to(tl.int32, bitcast=True)
        lowest, highest = tl.minimum(lowest, bits), tl.maximum(highest, bits)
        last = tl.maximum(last, bits.to(tl.uint32, bitcast=True))
    low, high, most_negative = tl.min(lowest, 0), tl.max(highest, 0), tl.max(last, 0).to(tl.int32, bitcast=True)
    return tl.where(most_negative < 0, most_negative, low), tl.where(high < 0, low, high)


@triton.jit
def _store_bytes(
    place: tl.tensor, packed: tl.tensor, size: tl.tensor, aligned: tl.constexpr, here: tl.tensor, left: tl.tensor
) -> None:
    """Store the lower `size` bytes, 0, 1, 2 or 4, but not more than are `left`."""
    if aligned:
        tl.store(place.to(tl.pointer_type(tl.uint32)), packed.to(tl.uint32), mask=here & (size == 4))
        tl.store(place.to(tl.pointer_type(tl.uint16)), (packed & 0xFFFF).to(tl.uint16), mask=here & (size == 2))
        tl.store(place, (packed & 0xFF).to(tl.uint8), mask=here & (size == 1))
    else:
        size = tl.where(here, tl.minimum(size, left), 0)
        for number in tl.static_range(4):
            tl.store(place + number, ((packed >> (8 * number)) & 0xFF).to(tl.uint8), mask=number < size)


@triton.jit(do_not_specialize=["count"])
def _dequantize(
    packed: tl.tensor,
    bits: tl.tensor,
    offsets: tl.tensor,
    out: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    width: tl.constexpr,
    picks: tl.constexpr,
    adds: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * _READ_ROWS + tl.arange(0, _READ_ROWS)
    here = i < count
    place = i
    if picks:
        place = tl.load(places + i, mask=here, other=0)
    start = packed + tl.load(offsets + i, mask=here, other=0)
    width_bits = tl.load(bits + i, mask=here, other=1).to(tl.int32)
    step_bits = _two_bytes(start, here)
    zero_bits = _two_bytes(start + 2, here)
    is_constant = (step_bits & _CONSTANT_ROW) != 0
    lower = ((step_bits - _CONSTANT_ROW) << 1) | (tl.load(start + 4, mask=here, other=0).to(tl.int32) & 1)
    value = ((zero_bits << 16) | tl.where(is_constant, lower, 0)).to(tl.float32, bitcast=True)[None, :]
    step = tl.where(is_constant, 0, step_bits << 16).to(tl.float32, bitcast=True)[None, :]
    row, entries = (out + place * width)[None, :], (start + 4)[None, :]
    shift = width_bits[None, :]
    for first in range(0, width, _READ_COLUMNS):
        column = first + tl.arange(0, _READ_COLUMNS)[:, None]
        inside = here[None, :] & (column < width)
        bit = column * shift
        byte = tl.load(entries + (bit >> 3), mask=inside, other=0).to(tl.int32)
        decoded = value + ((byte >> (bit & 7)) & ((1 << shift) - 1)).to(tl.float32) * step
        if adds:
            decoded += tl.load(row + column, mask=inside, other=0)
        tl.store(row + column, decoded, mask=inside)


@triton.jit
def _two_bytes(place: tl.tensor, here: tl.tensor) -> tl.tensor:
    low, high = tl.load(place, mask=here, other=0).to(tl.int32), tl.load(place + 1, mask=here, other=0).to(tl.int32)
    return low | (high << 8)


@triton.jit
def _choose_parameters(low: tl.tensor, high: tl.tensor, width_bits: tl.tensor) -> tl.tuple:
    """Find step and zero point, their upper halves, and whether all that is decoded is finite."""
    low_bits = low.to(tl.int32, bitcast=True)
    zero_bits = ((low_bits.to(tl.int64) & 0xFFFFFFFF) + tl.where(low_bits < 0, 0xFFFF, 0)) >> 16
    zero = (zero_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    zero64, high64, top64 = zero.to(tl.float64), high.to(tl.float64), ((1 << width_bits) - 1).to(tl.float64)
    # Where this is not what a division comes to, the next line but two mends it.
    inverse = tl.where(width_bits == 1, _inverse(1), tl.where(width_bits == 2, _inverse(3), _inverse(15)))
    exact_step = ((high64 - zero64) * tl.where(width_bits == 8, _inverse(255), inverse)).to(tl.float32)
    step_bits = (exact_step.to(tl.int32, bitcast=True).to(tl.int64) + 0xFFFF) >> 16
    step_bits = tl.maximum(step_bits, _LEAST_STEP)
    step = (step_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    step_bits += tl.where(zero64 + top64 * step.to(tl.float64) < high64, 1, 0)
    step = (step_bits << 16).to(tl.int32).to(tl.float32, bitcast=True)
    reach = top64 * step.to(tl.float64)
    is_finite = (reach <= _LARGEST) & (tl.abs(zero64 + reach) <= _LARGEST)
    return step, step_bits, zero, zero_bits, is_finite


@triton.jit
def _mix32(value: tl.tensor, key: tl.tensor) -> tl.tensor:
    """Mix 32 bits with a key; see `windrow.comm.inline_kernels.mix32`."""
    value = (value ^ (value >> 16)) * _FIRST_32
    value = (value ^ (value >> 15) ^ key) * _SECOND_32
    return value ^ (value >> 15)


@triton.jit
def _inverse(number: tl.constexpr) -> tl.tensor:
    return tl.full((), 1 / number, tl.float64)


@triton.jit
def mix(value: tl.tensor) -> tl.tensor:
    """Mix 64 bits; see `windrow.comm.random.mix64`."""
    value = (value ^ (value >> 30)) * _FIRST
    value = (value ^ (value >> 27)) * _SECOND
    return value ^ (value >> 31)
