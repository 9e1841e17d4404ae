"""The loops behind `windrow.comm.rows`: copies of rows, conversions to 16 bits, owners of ids; and lists turned round.

Copies take ``rows[positions[i]]`` to ``out[places[i]]``. Both are contiguous matrices of equal width. An empty
`positions` means all rows as they stand, and so does an empty `places`; where both have entries they have the same
number.

Conversions go between float32 and the bits of 16-bit floating-point numbers. Numba knows neither type; the processor
converts many at once, which LLVM does where loops use these::

    float16    sign 1, exponent 5, fraction 10 bits (IEEE 754 binary16)
    bfloat16   sign 1, exponent 8, fraction 7 bits: the upper half of a float32
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from windrow.comm.inline_kernels import STREAMED, prefetch, stream

__all__ = [
    "AHEAD",
    "CACHE_LINE_BYTES",
    "Words",
    "as_bfloat16",
    "as_float16",
    "find_owners",
    "move",
    "move_columns",
    "move_past_caches",
    "move_vectors",
    "sort_by_owner",
    "transpose",
]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.integer]

AHEAD = 8
"""Rows between asking for one and copying it."""

CACHE_LINE_BYTES = 64


@numba.njit(nogil=True, cache=True)
def move(
    rows: Array,
    positions: Longs,
    out: Array,
    places: Longs,
    is_bfloat16: bool,  # noqa: FBT001  # compiled code takes arguments by position
) -> None:
    """Copy rows of one type, or between float32 and 16-bit numbers, given by their bits: rounded, or widened."""
    like = out.dtype.type(0)
    width, last = rows.shape[1], max(positions.size, places.size) - 1
    flat_rows, line_of_rows = rows.reshape(-1), CACHE_LINE_BYTES // rows.itemsize
    flat_out, line_of_out = out.reshape(-1), CACHE_LINE_BYTES // out.itemsize
    for i in range(last + 1):
        position = place = i
        if positions.size > 0:
            position = positions[i]
            coming = positions[min(i + AHEAD, last)] * width
            for column in range(0, width, line_of_rows):
                prefetch(flat_rows, coming + column)
        if places.size > 0:
            place = places[i]
            going = places[min(i + AHEAD, last)] * width
            for column in range(0, width, line_of_out):
                prefetch(flat_out, going + column)
        if is_bfloat16:
            for column in range(width):
                out[place, column] = as_bfloat16(rows[position, column], like)
        else:
            for column in range(width):
                out[place, column] = as_float16(rows[position, column], like)


@numba.njit(nogil=True, cache=True)
def move_past_caches(rows: npt.NDArray[np.int64], positions: Longs, out: npt.NDArray[np.int64], places: Longs) -> None:
    """`move` of rows that are whole cache lines, to memory that begins with one: quicker where `out` is large."""
    width, last = rows.shape[1], max(positions.size, places.size) - 1
    flat_rows, flat_out = rows.reshape(-1), out.reshape(-1)
    for i in range(last + 1):
        position = place = i
        if positions.size > 0:
            position = positions[i]
            coming = positions[min(i + AHEAD, last)] * width
            for column in range(0, width, CACHE_LINE_BYTES // 8):
                prefetch(flat_rows, coming + column)
        if places.size > 0:
            place = places[i]
        for column in range(0, width, STREAMED):
            stream(flat_rows, position * width + column, flat_out, place * width + column)


@numba.njit(nogil=True, cache=True)
def move_columns(
    rows: npt.NDArray[np.floating],
    row_stride: int,
    out: npt.NDArray[np.floating],
    out_stride: int,
    count: int,
    index: Longs,
    runs: Longs,
    back: bool,  # noqa: FBT001
    add: bool,  # noqa: FBT001
) -> None:
    """Copy or add runs of columns, all runs of a row before the next row; see `windrow.comm.rows.move_columns`.

    Both matrices are given by their memory from the first element on, and how many elements apart rows begin.
    """
    for row in range(count):
        other = index[row] if index.size > 0 else row
        first_source, first_target = (row, other) if back else (other, row)
        for run in range(len(runs)):
            here, there, width = runs[run, 0], runs[run, 1], runs[run, 2]
            first = first_source * row_stride + (there if back else here)
            place = first_target * out_stride + (here if back else there)
            # Slices let the compiler use vector instructions: their indices cannot be negative.
            source, target = rows[first : first + width], out[place : place + width]
            if add:
                for column in range(width):
                    target[column] += source[column]
            else:
                for column in range(width):
                    target[column] = source[column]


@numba.njit(nogil=True, cache=True)
def move_vectors(
    vectors: npt.NDArray[np.floating],
    stride: int,
    positions: Longs,
    width: int,
    matrix: npt.NDArray[np.floating],
    places: Longs,
    back: bool,  # noqa: FBT001
) -> None:
    """Add vectors to a matrix, or copy them from it; see `windrow.comm.rows.move_vectors`.

    Both are given by their memory from the first element on; vectors are `stride` elements apart.
    """
    last = len(places) - 1
    for i in range(last + 1):
        coming = places[min(i + AHEAD, last)]
        for column in range(0, width, CACHE_LINE_BYTES // matrix.itemsize):
            prefetch(matrix, coming + column)
        first = (positions[i] if positions.size > 0 else i) * stride
        vector, there = vectors[first : first + width], matrix[places[i] : places[i] + width]
        if back:
            for column in range(width):
                vector[column] = there[column]
        else:
            for column in range(width):
                there[column] += vector[column]


@numba.njit(cache=True, nogil=True)
def find_owners(ids: Longs, offsets: Longs, owner: Ints, counts: Longs) -> tuple[bool, int]:
    """Find who owns each id, by `offsets` [ranks + 1] that never fall, and how many each rank owns.

    Writes `owner` [n] and `counts` [ranks], which holds zeros.

    Returns:
        ``(grouped, bad_position)``: whether owners never fall, and the first position whose id nobody owns,
        or -1 (where it is not -1 the rest is unfinished).
    """
    first, last = offsets[0], offsets[-1]
    outside = False
    for position in range(ids.size):
        outside |= (ids[position] < first) | (ids[position] >= last)
        owner[position] = 0
    if outside:
        for position in range(ids.size):
            if ids[position] < first or ids[position] >= last:
                return False, position

    # One level of the binary search at a time for all ids: these loops have no branch on the data, which no
    # processor could guess for ids in random order, and compile to vector code.
    length = counts.size
    while length > 1:
        half = length >> 1
        for position in range(ids.size):
            low = owner[position]
            owner[position] = low + np.int32(half) * np.int32(offsets[low + half] <= ids[position])
        length -= half

    grouped = True
    previous = 0
    for position in range(ids.size):
        low = owner[position]
        counts[low] += 1
        grouped &= previous <= low
        previous = low
    return grouped, -1


@numba.njit(cache=True, nogil=True)
def sort_by_owner(owner: Ints, counts: Longs, order: Longs) -> None:
    """Counting sort by what `find_owners` wrote: positions of rank 0's ids, then of rank 1's, into `order` [n]."""
    cursor = np.zeros(counts.size, np.int64)
    for rank in range(1, counts.size):
        cursor[rank] = cursor[rank - 1] + counts[rank - 1]
    for position in range(owner.size):
        rank = owner[position]
        order[cursor[rank]] = position
        cursor[rank] += 1


@numba.njit(cache=True, nogil=True)
def transpose(indptr: Words, indices: Words, out_indptr: Longs, out_indices: Words, positions: Words | None) -> None:
    """List, for each column, the rows that list it, ascending; a counting sort that needs no memory of its own.

    Args:
        indptr: [rows + 1], where each row's list starts.
        indices: [E], the lists one after another.
        out_indptr: int64 [columns + 1] of zeros; written.
        out_indices: [E] of any integer type; written.
        positions: [E] of any integer type; written: where each entry stands in `indices`. None: nobody asks.
    """
    num_columns = len(out_indptr) - 1
    for entry in range(len(indices)):
        out_indptr[indices[entry] + 1] += 1
    for column in range(num_columns):
        out_indptr[column + 1] += out_indptr[column]
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            place = out_indptr[indices[entry]]
            out_indptr[indices[entry]] = place + 1
            out_indices[place] = row
            if positions is not None:
                positions[place] = entry
    # Filling has moved every start to the next one's.
    for column in range(num_columns, 0, -1):
        out_indptr[column] = out_indptr[column - 1]
    out_indptr[0] = 0


_INT16, _INT32, _FLOAT, _HALF = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.HalfType()
_SHIFT = 16
_JUST_BELOW_HALF = 0x7FFF
"""What rounding adds to the lower half of a float32, and one more where the upper half is odd: ties go to even."""
_NOT_A_NUMBER = 0x7FC0
"""The bfloat16 that stands for every NaN, as in PyTorch: rounding the bits of one could give infinity."""


def _conversion(narrow: Callable[[Any, Any], Any], widen: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of (value, like) for compiled loops: a float32, or the bits of a short one, in the type of `like`."""

    def generic(_typing_context: object, value: Any, like: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            if value == like:
                return arguments[0]
            return (narrow if value == types.float32 else widen)(builder, arguments[0])

        return like(value, like), generate

    return cast("Callable[[Any, Any], Any]", intrinsic(generic))


def _to_bfloat16(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _INT32)
    odd = builder.and_(builder.lshr(bits, _INT32(_SHIFT)), _INT32(1))
    rounded = builder.add(bits, builder.add(odd, _INT32(_JUST_BELOW_HALF)))
    upper = builder.trunc(builder.lshr(rounded, _INT32(_SHIFT)), _INT16)
    is_number = builder.fcmp_ordered("==", value, value)
    return builder.select(is_number, upper, _INT16(_NOT_A_NUMBER))


as_float16 = _conversion(
    narrow=lambda builder, value: builder.bitcast(builder.fptrunc(value, _HALF), _INT16),
    widen=lambda builder, bits: builder.fpext(builder.bitcast(bits, _HALF), _FLOAT),
)
"""The bits of the nearest float16, ties to even, infinity from 65520 on; or the value of one, exact."""

as_bfloat16 = _conversion(
    narrow=_to_bfloat16,
    widen=lambda builder, bits: builder.bitcast(builder.shl(builder.zext(bits, _INT32), _INT32(_SHIFT)), _FLOAT),
)
"""The bits of the nearest bfloat16, ties to even, one NaN for all; or the value of one, exact."""
