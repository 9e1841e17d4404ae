"""Compiled loops of ROBE: hash, read and add up in one pass, and the way back; see `windrow.recsys.tables.robe`.

``hashes`` are (P, B, C, span of starts, Z, whether there are signs). ``segments`` [lookups, 5] uint64 are, of each
lookup, A_e, the key of its signs, its first row, its first column and the one after the last.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64, prefetch
from windrow.comm.random import GOLDEN

__all__ = ["add_to_array", "pool", "start_blocks"]

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Rows = npt.NDArray[np.integer]
Hashes = tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, bool]

_MERSENNE = np.uint64((1 << 61) - 1)
_LOW, _LOW_MASK = np.uint64(31), np.uint64((1 << 31) - 1)
_FOLD, _FOLD_MASK = np.uint64(30), np.uint64((1 << 30) - 1)
_ALL, _ONE = np.uint64(61), np.uint64(1)
_GOLDEN = np.uint64(GOLDEN)
_BYTE, _LAST_BYTE, _THREE, _EIGHT = np.uint64(7), np.uint64(255), np.uint64(3), np.uint64(8)
_LINE = 16
"""Numbers in a cache line."""


@numba.njit(inline="always", cache=True)
def _product(number: np.uint64, factor: np.uint64, prime: np.uint64) -> np.uint64:
    """``number * factor mod prime``; see `windrow.recsys.tables.robe.product`."""
    if prime != _MERSENNE:
        return number % prime * factor % prime
    low, high = number & _LOW_MASK, number >> _LOW
    factor_low, factor_high = factor & _LOW_MASK, factor >> _LOW
    middle = low * factor_high + high * factor_low
    total = (high * factor_high << _ONE) + (middle >> _FOLD) + ((middle & _FOLD_MASK) << _LOW) + low * factor_low
    total = (total & _MERSENNE) + (total >> _ALL)
    return total - _MERSENNE if total >= _MERSENNE else total


@numba.njit(inline="always", cache=True)
def _sum(one: np.uint64, other: np.uint64, prime: np.uint64) -> np.uint64:
    """Of two numbers below the prime."""
    total = one + other
    return total - prime if total >= prime else total


@numba.njit(nogil=True, cache=True)
def start_blocks(
    starts: Offsets, array: Floats, row: np.uint64, constant: np.uint64, first: int | np.integer, hashes: Hashes
) -> None:
    """Where the blocks of a row begin in the array, from block `first` on; their numbers are asked for."""
    prime, per_row, per_block, span, block, _ = hashes
    place = _sum(_product(row, per_row, prime), constant, prime)
    place = _sum(place, _product(np.uint64(first), per_block, prime), prime)
    for number in range(len(starts)):
        start = np.int64(place % span)
        starts[number] = start
        for line in range(0, np.int64(block), _LINE):
            prefetch(array, start + line)
        place = _sum(place, per_block, prime)


_IN_BYTE = 8
_SIGNS = (1 - 2 * ((np.arange(256)[:, None] >> np.arange(_IN_BYTE)) & 1)).astype(np.float32)
"""[256, 8] the signs that the bits of a byte say."""


@numba.njit(nogil=True, cache=True)
def _sign(signs: Floats, row: np.uint64, key: np.uint64, first_byte: int | np.integer) -> None:
    """Write -1 or 1 for columns of a row, eight for each byte from one byte of its bits on."""
    of_row = hash_id(key, row)
    word = np.uint64(0)
    for number in range(len(signs) // _IN_BYTE):
        byte = np.uint64(first_byte + number)
        if number == 0 or byte & _BYTE == 0:
            word = mix64(of_row + (byte >> _THREE) * _GOLDEN) >> ((byte & _BYTE) << _THREE)
        chosen = _SIGNS[np.int64(word & _LAST_BYTE)]
        for column in range(_IN_BYTE):
            signs[number * _IN_BYTE + column] = chosen[column]
        word >>= _EIGHT


@numba.njit(nogil=True, cache=True)
def pool(
    array: Floats,
    segments: Words,
    hashes: Hashes,
    values: Rows,
    offsets: Offsets,
    weights: Floats,
    pooled: Floats,
    first_sample: int,
    last_sample: int,
) -> None:
    """Write the weighted sums of the vectors of some samples' bags, lookups side by side.

    Args:
        array: [m].
        segments: see this module.
        hashes: likewise.
        values: [n] rows, less the first row of their lookup.
        offsets: [lookups * samples + 1].
        weights: [n], or empty where every value weighs 1.
        pooled: [samples, columns of all lookups], written.
        first_sample: which samples.
        last_sample: the one after the last.
    """
    size, block, has_signs = len(array), np.int64(hashes[4]), hashes[5]
    samples, column = pooled.shape[0], np.int64(0)
    for lookup in range(len(segments)):
        constant, key, first_row = segments[lookup, 0], segments[lookup, 1], segments[lookup, 2]
        left, right = np.int64(segments[lookup, 3]), np.int64(segments[lookup, 4])
        dim, first_block = right - left, left // block
        blocks = (right - 1) // block + 1 - first_block
        starts, coming = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
        # Whole bytes of signs; the first column may be inside the first.
        first_byte = left // _IN_BYTE
        signs = np.ones(-(-right // _IN_BYTE) * _IN_BYTE - first_byte * _IN_BYTE, np.float32)
        own_signs = signs[left - first_byte * _IN_BYTE :]
        begin, end = offsets[lookup * samples + first_sample], offsets[lookup * samples + last_sample]
        if begin < end:
            start_blocks(coming, array, np.uint64(values[begin]) + first_row, constant, first_block, hashes)
        for sample in range(first_sample, last_sample):
            total = pooled[sample, column : column + dim]
            total[:] = 0
            for place in range(offsets[lookup * samples + sample], offsets[lookup * samples + sample + 1]):
                starts, coming = coming, starts
                if place + 1 < end:
                    row = np.uint64(values[place + 1]) + first_row
                    start_blocks(coming, array, row, constant, first_block, hashes)
                if has_signs:
                    _sign(signs, np.uint64(values[place]) + first_row, key, first_byte)
                weight = weights[place] if len(weights) else np.float32(1)
                for number in range(blocks):
                    # Columns of this block, and where the first of them is in the array.
                    low = max((first_block + number) * block, left)
                    high = min((first_block + number + 1) * block, right)
                    there = starts[number] + low - (first_block + number) * block
                    here = low - left
                    until_end = min(max(size - there, 0), high - low)
                    source, target, sign = array[there:], total[here:], own_signs[here:]
                    for i in range(until_end):
                        target[i] += weight * (sign[i] * source[i])
                    for i in range(until_end, high - low):
                        target[i] += weight * (sign[i] * array[there + i - size])
        column += dim


@numba.njit(nogil=True, cache=True)
def add_to_array(
    gradient: Floats,
    segments: Words,
    hashes: Hashes,
    values: Rows,
    offsets: Offsets,
    weights: Floats,
    arriving: Floats,
    part: int,
    parts: int,
) -> None:
    """The transpose of `pool`: add the gradients of the sums to those of the array.

    Only to the numbers that belong to one of `parts`, which threads may do at once: each number gets its gradients in
    the same order whatever their number.
    """
    size, block, has_signs = len(gradient), np.int64(hashes[4]), hashes[5]
    own_first, own_last = size * part // parts, size * (part + 1) // parts
    samples, column = arriving.shape[0], np.int64(0)
    for lookup in range(len(segments)):
        constant, key, first_row = segments[lookup, 0], segments[lookup, 1], segments[lookup, 2]
        left, right = np.int64(segments[lookup, 3]), np.int64(segments[lookup, 4])
        dim, first_block = right - left, left // block
        blocks = (right - 1) // block + 1 - first_block
        starts, coming = np.empty(blocks, np.int64), np.empty(blocks, np.int64)
        # Whole bytes of signs; the first column may be inside the first.
        first_byte = left // _IN_BYTE
        signs = np.ones(-(-right // _IN_BYTE) * _IN_BYTE - first_byte * _IN_BYTE, np.float32)
        own_signs = signs[left - first_byte * _IN_BYTE :]
        begin, end = offsets[lookup * samples], offsets[(lookup + 1) * samples]
        if begin < end:
            start_blocks(coming, gradient, np.uint64(values[begin]) + first_row, constant, first_block, hashes)
        for sample in range(samples):
            upstream = arriving[sample, column : column + dim]
            for place in range(offsets[lookup * samples + sample], offsets[lookup * samples + sample + 1]):
                starts, coming = coming, starts
                if place + 1 < end:
                    row = np.uint64(values[place + 1]) + first_row
                    start_blocks(coming, gradient, row, constant, first_block, hashes)
                if has_signs:
                    _sign(signs, np.uint64(values[place]) + first_row, key, first_byte)
                weight = weights[place] if len(weights) else np.float32(1)
                for number in range(blocks):
                    low = max((first_block + number) * block, left)
                    high = min((first_block + number + 1) * block, right)
                    there = starts[number] + low - (first_block + number) * block
                    here = low - left
                    # A block that passes the end goes on at the beginning: two ranges of numbers.
                    for turn in range(2):
                        offset = there - turn * size
                        lowest = max(own_first - offset, 0, 0 if turn == 0 else size - there)
                        highest = min(own_last - offset, high - low)
                        if lowest < highest:
                            target = gradient[offset + lowest : offset + highest]
                            sign, source = own_signs[here + lowest :], upstream[here + lowest :]
                            for i in range(highest - lowest):
                                target[i] += weight * (sign[i] * source[i])
        column += dim
