"""Numba kernel behind `windrow.training.dropout` for arrays in CPU memory."""

import numba
import numpy as np
from numpy.typing import NDArray

from windrow.comm.inline_kernels import hash_id, mix64
from windrow.comm.random import GOLDEN

__all__ = ["drop_columns", "pass_kept"]

_GOLDEN = np.uint64(GOLDEN)


@numba.njit(cache=True, nogil=True)
def drop_columns(
    x: NDArray[np.float32],
    row_ids: NDArray[np.int64],
    key: np.uint64,
    threshold: np.uint16,
    scale: np.float32,
    lowest: np.float32,
    out: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Write rows from `first` to before `last` of `x`, times `scale` or zero, into `out`.

    The law of the choice is in `windrow.training.dropout`.

    A column is kept where its 16 bits are at least `threshold`. Entries below `lowest` count as it: 0 for a rectifier
    before, minus infinity for none.
    """
    columns = x.shape[1]
    groups = np.empty((columns + 3) // 4, np.uint64)
    for group in range(groups.shape[0]):
        groups[group] = mix64(np.uint64(group) + _GOLDEN)
    words = np.empty_like(groups)
    # The low bits of a word come first in memory. Two plain loops over a row: both compile to vector code.
    bits = words.view(np.uint16)
    zero = np.float32(0)
    for row in range(first, last):
        row_key = hash_id(key, np.uint64(row_ids[row]))
        for group in range(groups.shape[0]):
            words[group] = mix64(row_key ^ groups[group])
        for column in range(columns):
            value = x[row, column]
            # max() would turn what is not a number into `lowest`.
            value = lowest if value < lowest else value  # noqa: FURB136
            out[row, column] = value * (scale if bits[column] >= threshold else zero)


@numba.njit(cache=True, nogil=True)
def pass_kept(
    kept: NDArray[np.float32],
    upstream: NDArray[np.float32],
    scale: np.float32,
    out: NDArray[np.float32],
    first: int,
    last: int,
) -> None:
    """Write `upstream` times `scale`, zero where `kept` is zero or less, for rows from `first` to before `last`."""
    zero = np.float32(0)
    # One loop over all entries: vector code without a remainder for each row.
    passed, arriving = kept[first:last].reshape(-1), upstream[first:last].reshape(-1)
    leaving = out[first:last].reshape(-1)
    for entry in range(len(passed)):
        value = scale * arriving[entry]
        leaving[entry] = zero if passed[entry] <= zero else value
