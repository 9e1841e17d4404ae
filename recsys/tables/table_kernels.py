"""Compiled loops of embedding tables: rows of bags summed, their gradients added up or learnt from, and first values.

Bag b of a lookup holds ``values[offsets[b] : offsets[b + 1]]``; ``weights`` is empty where every value weighs 1. Row
numbers are not checked.

To learn, values are sorted, so that each row is read and written once, by the sum of neighbours' gradients. A key is a
row and, in the lower bits, a bag, or where values have weights the value's position::

    values 7 2 | 4 | 2 7      keys  2:0 2:2 | 4:1 | 7:0 7:2      row 2 learns from the gradients of bags 0 and 2

The sort keeps the order of a row's bags, so sums do not depend on other rows, nor on the number of threads.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64, prefetch
from windrow.comm.random import GOLDEN
from windrow.comm.rows_kernels import AHEAD, CACHE_LINE_BYTES, as_float16

__all__ = ["add_to_rows", "distinct", "fill_uniform", "learn", "sum_rows"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.integer]
Offsets = npt.NDArray[np.int64]

AHEAD_LEARNING = 12
"""Sorted values between asking for a row and changing it."""

FLOATS_IN_A_CACHE_LINE = 16


@numba.njit(nogil=True, cache=True)
def sum_rows(table: Floats, values: Rows, offsets: Offsets, weights: Floats, pooled: Floats, first_column: int) -> None:
    """Write the weighted sum of each bag's rows into ``pooled[:, first_column:]``, as many columns as rows have."""
    dim = table.shape[1]
    flat = table.reshape(-1)
    last = len(values) - 1
    for bag in range(len(offsets) - 1):
        # Slices of one row let the compiler use vector instructions: their indices cannot be negative.
        total = pooled[bag, first_column : first_column + dim]
        total[:] = 0
        for place in range(offsets[bag], offsets[bag + 1]):
            coming = np.int64(values[min(place + AHEAD, last)]) * dim
            for column in range(0, dim, FLOATS_IN_A_CACHE_LINE):
                prefetch(flat, coming + column)
            weight = weights[place] if len(weights) else np.float32(1)
            row = table[values[place]]
            for column in range(dim):
                total[column] += weight * row[column]


@numba.njit(nogil=True, cache=True)
def add_to_rows(
    gradient: Floats, values: Rows, offsets: Offsets, weights: Floats, pooled_gradient: Floats, first_column: int
) -> None:
    """The transpose of `sum_rows`: add each bag's gradient, weighted, to the gradients of its rows."""
    dim = gradient.shape[1]
    for bag in range(len(offsets) - 1):
        arriving = pooled_gradient[bag, first_column : first_column + dim]
        for place in range(offsets[bag], offsets[bag + 1]):
            weight = weights[place] if len(weights) else np.float32(1)
            row = gradient[values[place]]
            for column in range(dim):
                row[column] += weight * arriving[column]


WHOLE = 4
"""A table with less than this part of a thread's share of a batch's values is left to one thread."""


@numba.njit(nogil=True, cache=True)
def learn(
    tables: npt.NDArray[np.float32 | np.uint16],
    squares: Floats,
    members: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    values: Rows,
    offsets: Offsets,
    weights: Floats | None,
    gradients: Floats,
    pooled: bool,  # noqa: FBT001  # compiled code takes arguments by position
    learning_rate: np.float32,
    eps: np.float32,
    part: int,
    parts: int,
) -> None:
    """Change each row that was looked up by the sum of its gradients; formulas in `windrow.recsys.tables.fbgemm`.

    Args:
        tables: one after another, float32 or the bits of float16.
        squares: what the optimiser keeps of them, likewise.
        members: [tables, 8] first lookup and the one after the last; rows; columns, and how many are stored; where the
            table and its squares begin; squares of a row: 0 for SGD, 1 for row-wise Adagrad, else as many as stored.
        columns: [lookups] where the columns of each begin in `gradients`, if pooled.
        values: [n], lookup after lookup.
        offsets: [lookups * samples + 1].
        weights: [n], with pooling only; None: all are 1.
        gradients: [samples, columns] of sums, or unpooled [n, dim].
        pooled: which of the two.
        learning_rate: of this step.
        eps: keeps the divisor from zero.
        part: which rows to change: each belongs to one of `parts`, which threads may do at once.
        parts: how many there are.
    """
    samples = (len(offsets) - 1) // len(columns)
    for member in range(len(members)):
        first, stop, rows, dim, stored, here, squares_here, kept = members[member]
        start, end = offsets[first * samples], offsets[stop * samples]
        if start == end:
            continue
        own_part, own_parts = part, parts
        if (end - start) * parts * WHOLE < len(values):
            own_part, own_parts = 0, 1
            if member % parts != part:
                continue
        bags = offsets[first * samples : stop * samples + 1]
        table = tables[here : here + rows * stored].reshape(rows, stored)
        own_squares = squares[squares_here : squares_here + rows * kept].reshape(rows, kept)
        by_position = weights is not None or not pooled
        low_bits = _bits(end - start if by_position else len(bags))
        keys = _sort_by_row(values, bags, by_position, _bits(rows), low_bits, own_part, own_parts)
        if not pooled:
            _learn_rows(table, own_squares, keys, low_bits, None, None, gradients[start:end], learning_rate, eps)
            continue
        # The columns of one table, side by side, stay in a cache while its rows are gone through.
        side_by_side = np.empty(((stop - first) * samples, dim), np.float32)
        for lookup in range(first, stop):
            for sample in range(samples):
                arriving = gradients[sample, columns[lookup] : columns[lookup] + dim]
                copied = side_by_side[(lookup - first) * samples + sample]
                for column in range(dim):
                    copied[column] = arriving[column]
        if weights is None:
            _learn_rows(table, own_squares, keys, low_bits, None, None, side_by_side, learning_rate, eps)
        else:
            bag_of = np.repeat(np.arange(len(bags) - 1), np.diff(bags))
            own = weights[start:end]
            _learn_rows(table, own_squares, keys, low_bits, bag_of, own, side_by_side, learning_rate, eps)


@numba.njit(nogil=True, cache=True)
def _bits(count: int | np.integer) -> int:
    """Bits of the numbers below `count`, at least 1."""
    bits = 1
    while (count - 1) >> bits:
        bits += 1
    return bits


DIGIT_BITS = 11
"""Of a row's number that one pass of the sort looks at, at most: its counters stay in the first-level cache."""


@numba.njit(nogil=True, cache=True)
def _sort_by_row(
    values: Rows,
    bags: Offsets,
    by_position: bool,  # noqa: FBT001
    row_bits: int,
    low_bits: int,
    part: int,
    parts: int,
) -> Keys:
    """Sort the values of some bags by row, digit by digit from the lowest up; keys end with positions or with bags."""
    passes = -(-row_bits // DIGIT_BITS)
    digit_bits = -(-row_bits // passes)
    mask = np.uint64((1 << digit_bits) - 1)
    cursors = np.zeros((passes, (1 << digit_bits) + 1), np.int64)
    first = bags[0]
    keys = np.empty(bags[-1] - first, np.uint64)
    taken = 0
    for bag in range(len(bags) - 1):
        for position in range(bags[bag], bags[bag + 1]):
            row = np.uint64(values[position])
            if parts > 1 and mix64(row) % np.uint64(parts) != part:
                continue
            for digit in range(passes):
                cursors[digit, np.int64((row >> np.uint64(digit * digit_bits)) & mask) + 1] += 1
            keys[taken] = (row << np.uint64(low_bits)) | np.uint64(position - first if by_position else bag)
            taken += 1
    spare = np.empty_like(keys)
    for digit in range(passes):
        cursor, shift = cursors[digit], np.uint64(low_bits + digit * digit_bits)
        for number in range(1 << digit_bits):
            cursor[number + 1] += cursor[number]
        for position in range(taken):
            key = keys[position]
            place = np.int64((key >> shift) & mask)
            spare[cursor[place]] = key
            cursor[place] += 1
        keys, spare = spare, keys
    return keys[:taken]


@numba.njit(nogil=True, cache=True)
def distinct(values: Rows, largest: int) -> tuple[Offsets, Offsets, Offsets]:
    """Sort out which values there are: each once, ascending; of each position which one it has; how often each occurs.

    Args:
        values: [n], at least 0.
        largest: none is larger.
    """
    low_bits, taken, before = _bits(max(len(values), 1)), -1, np.int64(-1)
    mask, shift = np.uint64((1 << low_bits) - 1), np.uint64(low_bits)
    found, times, inverse = (
        np.empty(len(values), np.int64),
        np.zeros(len(values), np.int64),
        np.empty(len(values), np.int64),
    )
    everything = np.array([0, len(values)])
    for key in _sort_by_row(values, everything, True, _bits(largest + 1), low_bits, 0, 1):  # noqa: FBT003
        value = np.int64(key >> shift)
        if value != before:
            taken += 1
            found[taken] = before = value
        times[taken] += 1
        inverse[np.int64(key & mask)] = taken
    return found[: taken + 1], inverse, times[: taken + 1]


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _learn_rows(
    table: npt.NDArray[np.float32 | np.uint16],
    squares: Floats,
    keys: Keys,
    low_bits: int,
    bag_of: npt.NDArray[np.int64] | None,
    weights: Floats | None,
    gradients: Floats,
    learning_rate: np.float32,
    eps: np.float32,
) -> None:
    """`learn` of one table; keys end with rows of `gradients`, or with positions of `weights`, if there are any."""
    dim, last = gradients.shape[1], len(keys) - 1
    zero = np.float32(0)
    mask, shift = np.uint64((1 << low_bits) - 1), np.uint64(low_bits)
    flat, stored, line = table.reshape(-1), table.shape[1], CACHE_LINE_BYTES // table.itemsize
    flat_squares, kept = squares.reshape(-1), squares.shape[1]
    total = np.empty(dim, np.float32)
    position = 0
    while position <= last:
        number = np.int64(keys[position] >> shift)
        total[:] = 0
        while position <= last and np.int64(keys[position] >> shift) == number:
            coming = np.int64(keys[min(position + AHEAD_LEARNING, last)] >> shift)
            if coming != number:
                for column in range(0, stored, line):
                    prefetch(flat, coming * stored + column)
                for column in range(0, kept, FLOATS_IN_A_CACHE_LINE):
                    prefetch(flat_squares, coming * kept + column)
            low = np.int64(keys[position] & mask)
            if weights is None:
                arriving = gradients[low]
                for column in range(dim):
                    total[column] += arriving[column]
            elif bag_of is not None:
                arriving, weight = gradients[bag_of[low]], weights[low]
                for column in range(dim):
                    total[column] += weight * arriving[column]
            position += 1
        row = table[number]
        if kept > 1:
            own = squares[number]
            for column in range(dim):
                own[column] += total[column] * total[column]
                moved = as_float16(row[column], zero) - learning_rate * total[column] / (np.sqrt(own[column]) + eps)
                row[column] = as_float16(moved, row[column])
            continue
        rate = learning_rate
        if kept == 1:
            square = zero
            for column in range(dim):
                square += total[column] * total[column]
            squares[number, 0] += square / np.float32(dim)
            rate = learning_rate / (np.sqrt(squares[number, 0]) + eps)
        for column in range(dim):
            row[column] = as_float16(as_float16(row[column], zero) - rate * total[column], row[column])


_GOLDEN = np.uint64(GOLDEN)
_ONE, _BITS_KEPT, _BITS_HALF = np.uint64(1), np.uint64(8), np.uint64(32)
_STEP = np.float32(2.0**-23)


@numba.njit(nogil=True, cache=True)
def fill_uniform(values: Floats, key: np.uint64, ids: Ids, first_column: int, scale: np.float32) -> None:
    """Fill a shard of a table with uniform numbers, each a function of key, row and column alone.

    Args:
        values: [rows, columns] float32, written.
        key: of seed and table.
        ids: [rows] of each row in the whole table.
        first_column: of the shard in the whole table.
        scale: numbers are in [-scale, scale), multiples of scale / 2**23.
    """
    rows, columns = values.shape
    for row in range(rows):
        # SplitMix64 from a start of the row's own: one number of 64 bits for two neighbouring columns.
        start = hash_id(key, np.uint64(ids[row]))
        for column in range(columns):
            place = np.uint64(first_column + column)
            number = mix64(start + (place >> _ONE) * _GOLDEN) >> ((place & _ONE) * _BITS_HALF)
            bits = np.uint32(number) >> np.uint32(_BITS_KEPT)
            values[row, column] = (np.float32(bits) * _STEP - np.float32(1)) * scale
