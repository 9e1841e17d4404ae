"""A compiled loop that reads rows at random places as fast as this machine does."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch

__all__ = ["read_rows"]

AHEAD = 8
"""Rows between asking for one and copying it: covers one trip to memory."""
FLOATS_IN_A_CACHE_LINE = 16


@numba.njit(nogil=True, cache=True)
def read_rows(rows: npt.NDArray[np.float32], positions: npt.NDArray[np.integer], out: npt.NDArray[np.float32]) -> None:
    """Bring row ``positions[i]`` into the caches, and the last of each ``len(positions) / len(out)`` rows into `out`.

    So memory sees what a gather of as many rows as `out` has does, or a sum of neighbours of which some share a row of
    the result, but nothing is computed.
    """
    width, last = rows.shape[1], len(positions) - 1
    flat = rows.reshape(-1)
    place, filled = 0, 0
    for i in range(last + 1):
        coming = np.int64(positions[min(i + AHEAD, last)]) * width
        for column in range(0, width, FLOATS_IN_A_CACHE_LINE):
            prefetch(flat, coming + column)
        filled += len(out)
        if filled > last:
            # Slices let the compiler use vector instructions: their indices cannot be negative.
            source, target = rows[positions[i]], out[place]
            for column in range(width):
                target[column] = source[column]
            place, filled = place + 1, filled - last - 1
