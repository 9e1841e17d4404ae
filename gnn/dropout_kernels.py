"""Numba kernel behind `windrow.gnn.dropout` for arrays in CPU memory."""

import numba
import numpy as np
from numpy.typing import NDArray

from windrow.comm.random import GOLDEN
from windrow.comm.random_kernels import hash_id, mix64

__all__ = ["drop_columns"]

_GOLDEN = np.uint64(GOLDEN)
_DECISION = np.uint64(0xFFFF)
_16, _32, _48 = np.uint64(16), np.uint64(32), np.uint64(48)


@numba.njit(cache=True, nogil=True)
def drop_columns(
    x: NDArray[np.float32],
    row_ids: NDArray[np.int64],
    key: np.uint64,
    threshold: np.uint64,
    scale: np.float32,
    out: NDArray[np.float32],
) -> None:
    """Write `x` times `scale` or zero into `out`; the law of the choice is in `windrow.gnn.dropout`.

    Args:
        x: [rows, columns].
        row_ids: [rows].
        key: from `stream_key`.
        threshold: a column is kept where its 16 bits are at least this.
        scale: factor of what is kept.
        out: [rows, columns], overwritten.
    """
    columns = x.shape[1]
    whole_groups = columns // 4
    groups = np.empty((columns + 3) // 4, np.uint64)
    for group in range(groups.shape[0]):
        groups[group] = mix64(np.uint64(group) + _GOLDEN)
    zero = np.float32(0)
    for row in range(x.shape[0]):
        row_key = hash_id(key, np.uint64(row_ids[row]))
        for group in range(whole_groups):
            bits = mix64(row_key ^ groups[group])
            column = 4 * group
            first = scale if (bits & _DECISION) >= threshold else zero
            second = scale if ((bits >> _16) & _DECISION) >= threshold else zero
            third = scale if ((bits >> _32) & _DECISION) >= threshold else zero
            fourth = scale if (bits >> _48) >= threshold else zero
            out[row, column] = x[row, column] * first
            out[row, column + 1] = x[row, column + 1] * second
            out[row, column + 2] = x[row, column + 2] * third
            out[row, column + 3] = x[row, column + 3] * fourth
        for column in range(4 * whole_groups, columns):
            bits = mix64(row_key ^ groups[whole_groups]) >> np.uint64(16 * (column % 4))
            out[row, column] = x[row, column] * (scale if (bits & _DECISION) >= threshold else zero)
