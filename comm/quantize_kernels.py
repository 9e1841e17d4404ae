"""The loops behind `windrow.comm.quantize` for rows in CPU memory; the format of a row is told there.

A row is read twice, the second time from the cache of the first level: for its least and greatest entry, then to
quantise. Levels are first a byte each; as many of them as end in one byte are then seen as one wider number, whose bits
are moved together by shifts, so that every loop over a row compiles to vector code::

    4 bits   two levels as a uint16    itself | itself >> 4                        its lower byte is the packed one
    2 bits   four as a uint32          likewise by 12, then by 6
    1 bit    eight as a uint64         likewise by 28, by 14, then by 7

Unpacking goes the same way back.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from windrow.comm.inline_kernels import hash_id, mix32, mix64, prefetch
from windrow.comm.random import GOLDEN
from windrow.comm.rows_kernels import AHEAD, CACHE_LINE_BYTES

__all__ = ["CONSTANT_ROW", "LEAST_STEP", "dequantize_rows", "quantize_rows"]

_GOLDEN = np.uint64(GOLDEN)
_FLOATS_IN_A_CACHE_LINE = CACHE_LINE_BYTES // 4

CONSTANT_ROW = 0x8000
"""Bit of a first half that says that a row has equal entries."""

LEAST_STEP = 0x0080
"""The least normal bfloat16: numbers below could count as zero, and one must not divide by it."""

_ASKED_AT_ONCE = 256
"""Columns that are asked for before a row is read; the rest in the middle: the processor has no room for more."""

_LOWER_HALF = 0xFFFF
_LARGEST = np.float64(np.finfo(np.float32).max)
# Numba computes with 64 bits where it can; what is narrowed at each operation stays narrow in vector code.
_SIGN_SHIFT, _MAGNITUDE = np.int32(31), np.int32(0x7FFFFFFF)
_LEAST, _GREATEST = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
_DRAWN_BITS, _DRAWN_VALUES = np.int32(16), np.float32(1 << 16)
_HALVES = np.uint32(0x80008000)
"""Twice a half, in place of what is drawn."""


@numba.njit(cache=True, nogil=True)
def quantize_rows(
    rows: NDArray[np.float32],
    positions: NDArray[np.int64],
    bits: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    row_ids: NDArray[np.int64],
    key: np.uint64,
    nearest: bool,  # noqa: FBT001  # compiled code takes arguments by position
    out: NDArray[np.uint8],
    ranges: NDArray[np.float32],
    first: int,
    last: int,
) -> int:
    """Quantise and pack rows from `first` to before `last` of a message; empty `positions` mean rows as they stand.

    Empty `ranges` are not asked for, and empty `row_ids` where levels are the nearest. Returns the first row that
    cannot be quantised, where it stops, or -1.
    """
    width = rows.shape[1]
    flat, whole = rows.reshape(-1), rows.view(np.int32)
    pairs = np.empty((width + 1) // 2, np.uint32)
    for pair in range(len(pairs)):
        pairs[pair] = np.uint32(mix64(np.uint64(pair) + _GOLDEN))
    words = np.full_like(pairs, _HALVES)
    # The low bits of a word come first in memory.
    draws = words.view(np.uint16)
    # A byte for each level, and zeros up to a whole number of packed bytes.
    eights = np.zeros((width + 7) // 8, np.uint64)
    fours, twos, levels = eights.view(np.uint32), eights.view(np.uint16), eights.view(np.uint8)
    halves = np.empty(3, np.uint32)
    numbers = halves.view(np.float32)
    for i in range(first, last):
        position, coming = i, i + AHEAD
        if positions.size > 0:
            position, coming = positions[i], positions[min(i + AHEAD, last - 1)]
        for column in range(0, min(width, _ASKED_AT_ONCE), _FLOATS_IN_A_CACHE_LINE):
            prefetch(flat, coming * width + column)
        # Bits of floating-point numbers as integers in the same order, with which minima are plain vector code.
        lowest, highest = _GREATEST, _LEAST
        for column in range(width):
            ordered = _in_order(whole[position, column])
            lowest = min(lowest, ordered)
            highest = max(highest, ordered)
        halves[0], halves[1] = np.uint32(_in_order(lowest)), np.uint32(_in_order(highest))
        low, high, low_bits = numbers[0], numbers[1], np.int64(halves[0])
        # NaNs come before or after all numbers, so one of both is a NaN or infinite where an entry is.
        if not (np.abs(low) <= _LARGEST and np.abs(high) <= _LARGEST):
            return i
        if ranges.size > 0:
            ranges[i] = high - low
        if low == high:
            step_bits, zero_bits = int(CONSTANT_ROW | (low_bits & _LOWER_HALF) >> 1), int(low_bits >> 16)
            eights[:] = np.uint64(0)
            levels[0] = np.uint8(low_bits & 1)
        else:
            top = int((1 << np.int64(bits[i])) - 1)
            step_bits, zero_bits = _choose_parameters(halves, numbers, top)
            if step_bits < 0:
                return i
            zero, step, most = numbers[0], numbers[2], np.int32(top)
            if not nearest:
                row_key = hash_id(key, np.uint64(row_ids[i]))
                lower, upper = np.uint32(row_key), np.uint32(row_key >> np.uint64(32))
                for pair in range(len(pairs)):
                    words[pair] = mix32(np.uint32(pairs[pair] ^ lower), upper)
            for column in range(_ASKED_AT_ONCE, width, _FLOATS_IN_A_CACHE_LINE):
                prefetch(flat, coming * width + column)
            for column in range(width):
                fixed = np.int32((rows[position, column] - zero) / step * _DRAWN_VALUES)
                level = np.int32(np.int32(fixed + np.int32(draws[column])) >> _DRAWN_BITS)
                levels[column] = np.uint8(min(level, most))
        start = offsets[i]
        out[start], out[start + 1] = np.uint8(step_bits), np.uint8(step_bits >> 8)
        out[start + 2], out[start + 3] = np.uint8(zero_bits), np.uint8(zero_bits >> 8)
        _pack(bits[i], eights, fours, twos, levels, out, start + 4, offsets[i + 1])
    return -1


@numba.njit(cache=True, nogil=True)
def dequantize_rows(
    packed: NDArray[np.uint8],
    bits: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    out: NDArray[np.float32],
    places: NDArray[np.int64],
    add: bool,  # noqa: FBT001  # compiled code takes arguments by position
    first: int,
    last: int,
) -> None:
    """Unpack rows from `first` to before `last` of a message; empty `places` mean as they stand."""
    width = out.shape[1]
    flat = out.reshape(-1)
    eights = np.zeros((width + 7) // 8, np.uint64)
    fours, twos, levels = eights.view(np.uint32), eights.view(np.uint16), eights.view(np.uint8)
    halves = np.empty(2, np.uint32)
    numbers = halves.view(np.float32)
    for i in range(first, last):
        place = i
        if places.size > 0:
            place = places[i]
            going = places[min(i + AHEAD, last - 1)] * width
            for column in range(0, width, _FLOATS_IN_A_CACHE_LINE):
                prefetch(flat, going + column)
        start = offsets[i]
        step_bits = np.int64(packed[start]) | np.int64(packed[start + 1]) << 8
        zero_bits = np.int64(packed[start + 2]) | np.int64(packed[start + 3]) << 8
        if step_bits & CONSTANT_ROW:
            halves[1] = np.uint32(zero_bits << 16 | (step_bits & ~CONSTANT_ROW) << 1 | (packed[start + 4] & 1))
            value = numbers[1]
            if add:
                for column in range(width):
                    out[place, column] += value
            else:
                for column in range(width):
                    out[place, column] = value
            continue
        halves[0], halves[1] = np.uint32(step_bits << 16), np.uint32(zero_bits << 16)
        step, zero = numbers[0], numbers[1]
        _unpack(bits[i], eights, fours, twos, levels, packed, start + 4, offsets[i + 1])
        if add:
            for column in range(width):
                out[place, column] += zero + np.float32(levels[column]) * step
        else:
            for column in range(width):
                out[place, column] = zero + np.float32(levels[column]) * step


@numba.njit(inline="always", cache=True)
def _in_order(bits: np.int32) -> np.int32:
    """Bits of a float32 as an integer that is ordered as these are, or the other way round."""
    return np.int32(bits ^ np.int32(np.int32(bits >> _SIGN_SHIFT) & _MAGNITUDE))


@numba.njit(inline="always", cache=True)
def _choose_parameters(halves: NDArray[np.uint32], numbers: NDArray[np.float32], top: int) -> tuple[int, int]:
    """Find step and zero point for the highest level `top`, where `numbers` are `halves`, seen as float32.

    Entries 0 and 1 are the least and the greatest number; then 0 is the zero point and 2 the step. Returns the upper
    halves of step and zero point, the first one negative where what is decoded could be infinite.
    """
    high, low_bits = np.float64(numbers[1]), np.int64(halves[0])
    # Down to a bfloat16, the upper half of a float32: what is negative grows.
    zero_bits = int((low_bits + (_LOWER_HALF if low_bits >> 31 else 0)) >> 16)
    halves[0] = np.uint32(zero_bits << 16)
    zero = np.float64(numbers[0])
    numbers[2] = np.float32((high - zero) / top)
    step_bits = max(int((np.int64(halves[2]) + _LOWER_HALF) >> 16), LEAST_STEP)
    halves[2] = np.uint32(step_bits << 16)
    if zero + top * np.float64(numbers[2]) < high:
        step_bits += 1
        halves[2] = np.uint32(step_bits << 16)
    reach = top * np.float64(numbers[2])
    is_finite = reach <= _LARGEST and np.abs(zero + reach) <= _LARGEST
    return step_bits if is_finite else -1, zero_bits


@numba.njit(inline="always", cache=True)
def _pack(
    bits: int,
    eights: NDArray[np.uint64],
    fours: NDArray[np.uint32],
    twos: NDArray[np.uint16],
    levels: NDArray[np.uint8],
    message: NDArray[np.uint8],
    start: int,
    stop: int,
) -> None:
    """Write levels, a byte each, seen as numbers of 8, 4, 2 and 1 bytes, into bytes `start` to before `stop`."""
    if bits == 8:
        for byte in range(stop - start):
            message[np.uint64(start + byte)] = levels[byte]
    elif bits == 4:
        for byte in range(stop - start):
            two = twos[byte]
            message[np.uint64(start + byte)] = np.uint8(two | two >> np.uint16(4))
    elif bits == 2:
        for byte in range(stop - start):
            four = fours[byte]
            four = np.uint32(four | four >> np.uint32(12))
            message[np.uint64(start + byte)] = np.uint8(four | four >> np.uint32(6))
    else:
        for byte in range(stop - start):
            eight = eights[byte]
            eight |= eight >> np.uint64(28)
            eight |= eight >> np.uint64(14)
            message[np.uint64(start + byte)] = np.uint8(eight | eight >> np.uint64(7))


@numba.njit(inline="always", cache=True)
def _unpack(
    bits: int,
    eights: NDArray[np.uint64],
    fours: NDArray[np.uint32],
    twos: NDArray[np.uint16],
    levels: NDArray[np.uint8],
    message: NDArray[np.uint8],
    start: int,
    stop: int,
) -> None:
    """The inverse of `_pack`."""
    if bits == 8:
        for byte in range(stop - start):
            levels[byte] = message[np.uint64(start + byte)]
    elif bits == 4:
        for byte in range(stop - start):
            two = np.uint16(message[np.uint64(start + byte)])
            twos[byte] = np.uint16(two | two << np.uint16(4)) & np.uint16(0x0F0F)
    elif bits == 2:
        for byte in range(stop - start):
            four = np.uint32(message[np.uint64(start + byte)])
            four = np.uint32(four | four << np.uint32(12))
            fours[byte] = np.uint32(four | four << np.uint32(6)) & np.uint32(0x03030303)
    else:
        for byte in range(stop - start):
            eight = np.uint64(message[np.uint64(start + byte)])
            eight |= eight << np.uint64(28)
            eight |= eight << np.uint64(14)
            eights[byte] = (eight | eight << np.uint64(7)) & np.uint64(0x0101010101010101)
