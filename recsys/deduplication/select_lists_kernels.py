"""Compiled loops of `windrow.recsys.deduplication.select_lists`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["copy_lists", "selected_lengths"]

AHEAD = 8
"""Lists between asking for one and copying it."""

CHUNK = 8
"""Values copied without a question in between: as many as a short list has, one or two vector instructions."""


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
    target, limit = np.uint64(0), np.uint64(min(out.size, values.size))
    for feature in features:
        first = feature * num_rows
        for index in range(rows.size):
            # Where a list begins is as good as random: ask for it before it is needed.
            prefetch(values, offsets[first + rows[min(index + AHEAD, rows.size - 1)]])
            place = first + rows[index]
            start, length = np.uint64(offsets[place]), np.uint64(offsets[place + 1] - offsets[place])
            end = target + length
            if max(target, start) + length + np.uint64(CHUNK) <= limit:
                # A number of values that the compiler knows: what is too much is overwritten by the next list.
                while target < end:
                    for step in range(np.uint64(CHUNK)):
                        out[target + step] = values[start + step]
                    target += np.uint64(CHUNK)
                    start += np.uint64(CHUNK)
            else:
                while target < end:
                    out[target] = values[start]
                    target += np.uint64(1)
                    start += np.uint64(1)
            target = end
