"""The loops behind `windrow.comm.rows`: copy ``rows[positions[i]]`` to ``out[places[i]]``.

Both are contiguous matrices of equal width. An empty `positions` means all rows as they stand, and so does an empty
`places`; where both have entries they have the same number.

The three loops begin alike. A function for that part, even an inlined one, would count references to its arrays for
every row: it made narrow rows take three to seven times as long.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.half_kernels import from_bfloat16, from_float16, to_bfloat16, to_float16
from windrow.comm.prefetch_kernels import prefetch

__all__ = ["AHEAD", "Words", "move", "narrow", "widen"]

Words = npt.NDArray[np.integer]
Positions = npt.NDArray[np.int64]

AHEAD = 8
"""Rows between asking for one and copying it."""

CACHE_LINE_BYTES = 64


@numba.njit(nogil=True, cache=True)
def move(rows: Words, positions: Positions, out: Words, places: Positions) -> None:
    """Copy rows; both matrices have one type."""
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
        for column in range(width):
            out[place, column] = rows[position, column]


@numba.njit(nogil=True, cache=True)
def widen(
    rows: npt.NDArray[np.uint16],
    positions: Positions,
    out: npt.NDArray[np.float32],
    places: Positions,
    is_bfloat16: bool,  # noqa: FBT001  # compiled code takes arguments by position
) -> None:
    """Copy rows of bfloat16 or float16, given by their bits, as float32."""
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
                out[place, column] = from_bfloat16(rows[position, column])
        else:
            for column in range(width):
                out[place, column] = from_float16(rows[position, column])


@numba.njit(nogil=True, cache=True)
def narrow(
    rows: npt.NDArray[np.float32],
    positions: Positions,
    out: npt.NDArray[np.uint16],
    places: Positions,
    is_bfloat16: bool,  # noqa: FBT001  # compiled code takes arguments by position
) -> None:
    """Copy rows of float32, rounded to bfloat16 or float16; writes their bits."""
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
                out[place, column] = to_bfloat16(rows[position, column])
        else:
            for column in range(width):
                out[place, column] = to_float16(rows[position, column])
