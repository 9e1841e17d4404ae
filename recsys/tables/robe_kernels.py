"""Compiled loops of ROBE: hash, read and add up, and the way back; see `windrow.recsys.tables.robe`.

Bags of some samples are hashed, lookup after lookup, and their blocks asked for; then they are added up, sample after
sample, so that what is written is written in order.

``hashes`` are (P, B, C, span of starts, (2**64 - 1) // span, Z, whether there are signs). ``segments`` [lookups, 5]
uint64 are, of each lookup, A_e, the key of its signs, its first row, its first column and the one after the last.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import SIGNED, add_signed, hash_id, high_product, mix64, prefetch
from windrow.comm.random import GOLDEN

__all__ = ["add_to_array", "find_rows", "pool", "start_blocks"]

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]
Rows = npt.NDArray[np.integer]
Hashes = tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, bool]

_MERSENNE = np.uint64((1 << 61) - 1)
_EXPONENT, _REST, _ONE = np.uint64(61), np.uint64(3), np.uint64(1)
_GOLDEN = np.uint64(GOLDEN)
_LINE = 16
"""Numbers in a cache line."""
_WORD_BITS, _IN_WORD = 6, 63
LINES_AT_ONCE = 2048
"""Cache lines that are asked for before they are read: half of a small cache of the second level."""


@numba.njit(inline="always", cache=True)
def _product(number: np.uint64, factor: np.uint64, prime: np.uint64) -> np.uint64:
    """``number * factor mod prime`` of numbers below the prime, or any where it is not 2**61 - 1."""
    if prime != _MERSENNE:
        return number % prime * factor % prime
    # 2**61 is 1: the upper bits are added to the lower ones.
    low = number * factor
    total = (low & _MERSENNE) + (high_product(number, factor) << _REST | low >> _EXPONENT)
    return total - _MERSENNE if total >= _MERSENNE else total


@numba.njit(inline="always", cache=True)
def _sum(one: np.uint64, other: np.uint64, prime: np.uint64) -> np.uint64:
    """Of two numbers below the prime."""
    total = one + other
    return total - prime if total >= prime else total


@numba.njit(inline="always", cache=True)
def _rest(place: np.uint64, span: np.uint64, inverse: np.uint64) -> np.int64:
    """``place mod span``: a division takes as long as ten products."""
    # The quotient is at most one too small, as place < 2**61.
    rest = place - high_product(place, inverse) * span
    return np.int64(rest - span if rest >= span else rest)


@numba.njit(inline="always", cache=True)
def start_blocks(
    starts: Offsets, first: int, blocks: int, array: Floats, row: np.uint64, constant: np.uint64, hashes: Hashes
) -> None:
    """Write where some blocks of a row begin in the array, from ``starts[first]`` on, and ask for their numbers.

    Args:
        starts: written.
        first: where.
        blocks: how many.
        array: [m].
        row: number of the row in its table.
        constant: (A_e + C c) mod P of the first block c.
        hashes: see this module.
    """
    prime, per_row, per_block, span, inverse, block, _ = hashes
    place = _sum(_product(row, per_row, prime), constant, prime)
    for number in range(first, first + blocks):
        start = _rest(place, span, inverse)
        starts[number] = start
        for line in range(0, np.int64(block), _LINE):
            prefetch(array, start + line)
        prefetch(array, start + np.int64(block) - 1)
        place = _sum(place, per_block, prime)


@numba.njit(nogil=True, cache=True)
def _layout(segments: Words, block: int | np.integer) -> Offsets:
    """[lookups, 5] of each its columns, first and one after the last; its first block, how many; whether in eights."""
    layout = np.empty((len(segments), 5), np.int64)
    for lookup in range(len(segments)):
        left, right = np.int64(segments[lookup, 3]), np.int64(segments[lookup, 4])
        layout[lookup, 0], layout[lookup, 1] = left, right
        layout[lookup, 2], layout[lookup, 3] = left // block, (right - 1) // block + 1 - left // block
        layout[lookup, 4] = left % SIGNED == 0 and right % SIGNED == 0 and block % SIGNED == 0
    return layout


@numba.njit(nogil=True, cache=True)
def _find(
    layout: Offsets,
    segments: Words,
    hashes: Hashes,
    values: Rows,
    offsets: Offsets,
    array: Floats,
    samples: int,
    first: int,
    last: int,
) -> tuple[Offsets, Offsets]:
    """Where all blocks of some samples begin, lookup after lookup; and [lookups] where those of each lookup are."""
    cursors, total = np.empty(len(layout), np.int64), 0
    for lookup in range(len(layout)):
        cursors[lookup] = total
        total += (offsets[lookup * samples + last] - offsets[lookup * samples + first]) * layout[lookup, 3]
    starts = np.empty(total, np.int64)
    for lookup in range(len(layout)):
        _, _, first_block, blocks, _ = layout[lookup]
        of_block = _product(np.uint64(first_block), hashes[2], hashes[0])
        constant, first_row = _sum(segments[lookup, 0], of_block, hashes[0]), segments[lookup, 2]
        cursor = cursors[lookup]
        for place in range(offsets[lookup * samples + first], offsets[lookup * samples + last]):
            start_blocks(starts, cursor, blocks, array, np.uint64(values[place]) + first_row, constant, hashes)
            cursor += blocks
    return starts, cursors


@numba.njit(inline="always", cache=True)
def _signs(of_row: np.uint64, number: int | np.integer) -> np.uint64:
    """The signs of 64 columns of a row: a bit that is set says -1."""
    return mix64(of_row + np.uint64(number) * _GOLDEN)


@numba.njit(nogil=True, cache=True)
def _signed(value: np.float32, of_row: np.uint64, column: int | np.integer) -> np.float32:
    """A number with the sign of a column."""
    return -value if _signs(of_row, column >> _WORD_BITS) >> np.uint64(column & _IN_WORD) & _ONE else value


@numba.njit(nogil=True, cache=True)
def find_rows(
    ids: Rows,
    key: np.uint64,
    constant: np.uint64,
    hashes: Hashes,
    places: Offsets,
    signs: Floats,
    first: int,
    last: int,
) -> None:
    """Write which rows of an array the blocks of some ids are, and with which sign.

    Args:
        ids: [n].
        key: of the signs.
        constant: A_e.
        hashes: see this module; the span counts rows.
        places: [blocks of a vector, n], written.
        signs: likewise.
        first: which ids.
        last: the one after the last.
    """
    prime, per_row, per_block, span, inverse, block, _ = hashes
    for number in range(first, last):
        row = np.uint64(ids[number])
        of_row, place = hash_id(key, row), _sum(_product(row, per_row, prime), constant, prime)
        for turn in range(len(places)):
            places[turn, number] = _rest(place, span, inverse)
            signs[turn, number] = _signed(np.float32(1), of_row, turn * np.int64(block))
            place = _sum(place, per_block, prime)


@numba.njit(nogil=True, cache=True)
def _samples_at_once(layout: Offsets, block: int | np.integer, offsets: Offsets, samples: int) -> int:
    """How many samples have `LINES_AT_ONCE`, on average."""
    lines = 1
    for lookup in range(len(layout)):
        count = offsets[(lookup + 1) * samples] - offsets[lookup * samples]
        lines += count * layout[lookup, 3] * (block // _LINE + 1)
    return max(LINES_AT_ONCE * samples // lines, 1)


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
    size, block, has_signs = len(array), np.int64(hashes[5]), hashes[6]
    samples, width = pooled.shape
    flat, layout = pooled.reshape(-1), _layout(segments, block)
    at_once = _samples_at_once(layout, block, offsets, samples)
    for first in range(first_sample, last_sample, at_once):
        last = min(first + at_once, last_sample)
        starts, cursors = _find(layout, segments, hashes, values, offsets, array, samples, first, last)
        for sample in range(first, last):
            column = sample * width
            for lookup in range(len(layout)):
                left, right, first_block, blocks, in_eights = layout[lookup]
                # Where column 0 of the vector would be.
                target = column - left
                cursor, begin = cursors[lookup], offsets[lookup * samples + sample]
                end = offsets[lookup * samples + sample + 1]
                if begin == end:
                    flat[column : column + right - left] = 0
                for place in range(begin, end):
                    of_row = hash_id(segments[lookup, 1], np.uint64(values[place]) + segments[lookup, 2])
                    signs, known = np.uint64(0), -1
                    weight = weights[place] if len(weights) else np.float32(1)
                    for turn in range(blocks):
                        # Columns of this block, and where the array has column 0 of the vector.
                        low = max((first_block + turn) * block, left)
                        high = min((first_block + turn + 1) * block, right)
                        source = starts[cursor + turn] - (first_block + turn) * block
                        if in_eights and source + high <= size:
                            for i in range(low, high, SIGNED):
                                if has_signs and i >> _WORD_BITS != known:
                                    known = i >> _WORD_BITS
                                    signs = _signs(of_row, known)
                                bits = signs >> np.uint64(i & _IN_WORD)
                                add_signed(flat, target + i, array, source + i, bits, weight, place > begin)
                        else:
                            for i in range(low, high):
                                there = source + i if source + i < size else source + i - size
                                number = weight * (_signed(array[there], of_row, i) if has_signs else array[there])
                                flat[target + i] = flat[target + i] + number if place > begin else number
                    cursor += blocks
                cursors[lookup] = cursor
                column += right - left


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
    size, block, has_signs = len(gradient), np.int64(hashes[5]), hashes[6]
    own_first, own_last = size * part // parts, size * (part + 1) // parts
    samples, width = arriving.shape
    flat, layout = arriving.reshape(-1), _layout(segments, block)
    at_once, adds = _samples_at_once(layout, block, offsets, samples), True
    for first in range(0, samples, at_once):
        last = min(first + at_once, samples)
        starts, cursors = _find(layout, segments, hashes, values, offsets, gradient, samples, first, last)
        for sample in range(first, last):
            column = sample * width
            for lookup in range(len(layout)):
                left, right, first_block, blocks, in_eights = layout[lookup]
                source, cursor = column - left, cursors[lookup]
                for place in range(offsets[lookup * samples + sample], offsets[lookup * samples + sample + 1]):
                    of_row = hash_id(segments[lookup, 1], np.uint64(values[place]) + segments[lookup, 2])
                    signs, known = np.uint64(0), -1
                    weight = weights[place] if len(weights) else np.float32(1)
                    for turn in range(blocks):
                        low = max((first_block + turn) * block, left)
                        high = min((first_block + turn + 1) * block, right)
                        target = starts[cursor + turn] - (first_block + turn) * block
                        if target + high <= size and (target + high <= own_first or target + low >= own_last):
                            continue
                        if in_eights and target + low >= own_first and target + high <= own_last:
                            for i in range(low, high, SIGNED):
                                if has_signs and i >> _WORD_BITS != known:
                                    known = i >> _WORD_BITS
                                    signs = _signs(of_row, known)
                                bits = signs >> np.uint64(i & _IN_WORD)
                                add_signed(gradient, target + i, flat, source + i, bits, weight, adds)
                        else:
                            for i in range(low, high):
                                there = target + i if target + i < size else target + i - size
                                if own_first <= there < own_last:
                                    arrived = flat[source + i]
                                    gradient[there] += weight * (_signed(arrived, of_row, i) if has_signs else arrived)
                    cursor += blocks
                cursors[lookup] = cursor
                column += right - left
