"""Compiled loops of `windrow.recsys.window_columns`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch

__all__ = ["gather_lists"]

AHEAD = 8
"""Lists between asking for one and copying it."""


@numba.njit(nogil=True, cache=True)
def gather_lists(
    starts: npt.NDArray[np.int64],
    values: npt.NDArray[Any],
    order: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    out: npt.NDArray[Any],
) -> None:
    """Copy lists that lie one after the other in another order.

    Args:
        starts: [lists] where each begins in `values`.
        values: all lists.
        order: [n] which list comes first, second and so on.
        offsets: [n + 1] where each goes in `out`, and so how long it is.
        out: [offsets[n]], overwritten; of the type of `values`.
    """
    count = len(order)
    for place in range(count):
        # Where a list begins is as good as random: ask for it before it is needed.
        prefetch(values, starts[order[min(place + AHEAD, count - 1)]])
        source = starts[order[place]]
        for target in range(offsets[place], offsets[place + 1]):
            out[target] = values[source]
            source += 1
