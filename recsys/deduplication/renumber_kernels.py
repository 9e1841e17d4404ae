"""The compiled loop of `windrow.recsys.deduplication.renumber`."""

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["number_by_first"]


@numba.njit(cache=True, nogil=True)
def number_by_first(
    numbers: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    distinct: npt.NDArray[np.int64],
    renumbered: npt.NDArray[np.int64],
) -> int:
    """Number what comes in a sequence in the order in which it first comes.

    Args:
        numbers: [n], not checked.
        places: [limit], all -1; overwritten.
        distinct: [min(limit, n)]; the first U are written.
        renumbered: [n]; written: place of each number in `distinct`.

    Returns:
        U.
    """
    count = 0
    for index in range(numbers.size):
        number = numbers[index]
        if places[number] < 0:
            places[number] = count
            distinct[count] = number
            count += 1
        renumbered[index] = places[number]
    return count
