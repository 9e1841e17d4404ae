"""Compiled loops of rows in 8 and 4 bits: to read some, and to change some; see `windrow.recsys.tables.quantised`.

``words`` are stored rows as float32, of which the first two numbers are scale and low, and ``codes`` the same memory as
bytes: the first code of a byte is in its lower bits. What is computed equals PyTorch's operators bit for bit.
"""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64, prefetch
from windrow.comm.random import GOLDEN
from windrow.comm.rows_kernels import AHEAD, CACHE_LINE_BYTES
from windrow.recsys.tables.quantised import CHANCE_BITS, HEAD

__all__ = ["learn_rows", "unpack_rows"]

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]

HEAD_BYTES = 4 * HEAD
_GOLDEN = np.uint64(GOLDEN)
_HALF = np.uint64(32)
_CHANCE = np.uint64((1 << CHANCE_BITS) - 1)
_CHANCE_STEP = np.float32(1 / (1 << CHANCE_BITS))
"""A power of two: a product with it is a division by what it is one of."""


@numba.njit(inline="always", cache=True)
def _unpack(row: Codes, scale: np.float32, low: np.float32, bits: int, values: Floats) -> None:
    """Write the numbers of a stored row."""
    if bits == 8:
        for column in range(len(values)):
            values[column] = low + scale * np.float32(row[HEAD_BYTES + column])
        return
    for pair in range((len(values) + 1) // 2):
        byte = row[HEAD_BYTES + pair]
        values[2 * pair] = low + scale * np.float32(byte & 15)
        if 2 * pair + 1 < len(values):
            values[2 * pair + 1] = low + scale * np.float32(byte >> 4)


@numba.njit(inline="always", cache=True)
def _ask_for(codes: Codes, row: int) -> None:
    """Ask for a row before it is read."""
    flat, width = codes.reshape(-1), codes.shape[1]
    for place in range(0, width, CACHE_LINE_BYTES):
        prefetch(flat, row * width + place)


@numba.njit(nogil=True, cache=True)
def unpack_rows(words: Floats, codes: Codes, ids: Ids, bits: int, found: Floats) -> None:
    """Write the numbers of some rows: [n, dim] of [n] ids."""
    last = len(ids) - 1
    for place, row in enumerate(ids):
        _ask_for(codes, ids[min(place + AHEAD, last)])
        _unpack(codes[row], words[row, 0], words[row, 1], bits, found[place])


@numba.njit(nogil=True, cache=True)
def learn_rows(
    words: Floats, codes: Codes, ids: Ids, bits: int, change: Floats, rates: Floats, key: np.uint64, step: np.uint64
) -> None:
    """Take ``rates * change`` from some rows, and round up or down by chance.

    Args:
        words: of the table; changed.
        codes: likewise.
        ids: [n], all different.
        bits: of a code.
        change: [n, dim].
        rates: [n].
        key: of the table.
        step: on which chance depends.
    """
    dim, last, top = change.shape[1], len(ids) - 1, np.float32((1 << bits) - 1)
    values, rounded = np.empty(dim, np.float32), np.zeros(dim + 1, np.uint8)
    for place, row in enumerate(ids):
        _ask_for(codes, ids[min(place + AHEAD, last)])
        _unpack(codes[row], words[row, 0], words[row, 1], bits, values)
        low, high, is_number = np.float32(np.inf), np.float32(-np.inf), True
        for column in range(dim):
            values[column] -= rates[place] * change[place, column]
            low, high = min(low, values[column]), max(high, values[column])
            is_number &= values[column] == values[column]
        if not is_number:
            # So that it is seen, as it would be in float32.
            low = high = np.float32(np.nan)
        scale = (high - low) / top
        divisor = scale if scale > 0 else np.float32(1)
        of_row = hash_id(key, mix64(np.uint64(row) + _GOLDEN) + step - _GOLDEN)
        for pair in range((dim + 1) // 2):
            word = mix64(of_row + np.uint64(pair) * _GOLDEN)
            for column in range(2 * pair, min(2 * pair + 2, dim)):
                chance = np.float32(np.int64(word & _CHANCE)) * _CHANCE_STEP
                code = np.floor((values[column] - low) / divisor + chance)
                rounded[column] = np.uint8(min(code, top))
                word >>= _HALF
        words[row, 0], words[row, 1] = scale, low
        if bits == 8:
            codes[row, HEAD_BYTES : HEAD_BYTES + dim] = rounded[:dim]
        else:
            for pair in range((dim + 1) // 2):
                codes[row, HEAD_BYTES + pair] = rounded[2 * pair] | rounded[2 * pair + 1] << 4
