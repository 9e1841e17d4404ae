"""Compiled loops of `windrow.recsys.deduplication.select_lists`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["copy_lists", "selected_lengths"]

AHEAD = 8
"""Lists between asking for one and copying it."""

SHORT = 16
"""Shorter lists are copied one value at a time: the preparations for copying several at once would take longer."""


@numba.njit(cache=True, nogil=True)
def selected_lengths(
    offsets: npt.NDArray[np.integer[Any]],
    num_rows: int,
    features: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.integer[Any]],
) -> int:
    """Lengths of chosen lists.

    Args:
        offsets: [F * num_rows + 1] where each list begins, features first, rows second.
        num_rows: lists of a feature.
        features: [f] which features.
        rows: [n] which row of each, in the result's order.
        lengths: [f * n]; written.

    Returns:
        Their sum.
    """
    total, target = 0, 0
    for feature in features:
        for row in rows:
            place = feature * num_rows + row
            length = offsets[place + 1] - offsets[place]
            lengths[target] = length
            total += length
            target += 1
    return total


@numba.njit(cache=True, nogil=True)
def copy_lists(
    offsets: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[Any],
    num_rows: int,
    features: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    """Copy chosen lists one behind the other.

    Args:
        offsets: [F * num_rows + 1] where each list begins in `values`, features first, rows second.
        values: of all lists.
        num_rows: lists of a feature.
        features: [f] which features.
        rows: [n] which row of each, in the result's order.
        out: as long as `selected_lengths` says, of the type of `values`; written.
    """
    target = np.uint64(0)
    for feature in features:
        first = feature * num_rows
        for index in range(rows.size):
            # Where a list begins is as good as random: ask for it before it is needed.
            prefetch(values, offsets[first + rows[min(index + AHEAD, rows.size - 1)]])
            place = first + rows[index]
            start, length = np.uint64(offsets[place]), np.uint64(offsets[place + 1] - offsets[place])
            if length < np.uint64(SHORT):
                step = np.uint64(0)
                while step < length:
                    out[target + step] = values[start + step]
                    step += np.uint64(1)
            else:
                out[target : target + length] = values[start : start + length]
            target += length
