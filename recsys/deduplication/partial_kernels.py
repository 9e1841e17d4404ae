"""The compiled loop of `windrow.recsys.deduplication.partial`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["pack_lists"]


@numba.njit(cache=True, nogil=True)
def pack_lists(
    offsets: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[np.int64],
    step: int,
    failures: npt.NDArray[np.int64],
    packed: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
) -> int:
    """Write lists behind one another so that each overlaps with what stands there already.

    Args:
        offsets: [n + 1] where each list begins in `values`.
        values: of all lists.
        step: 1 to read lists from their beginning, -1 from their end.
        failures: as long as the longest list; overwritten.
        packed: as long as all lists together; the first V' are written.
        starts: [n]; written: where each list begins in `packed`.

    Returns:
        V'.
    """
    end, before, length_before = 0, 0, 0
    for row in range(starts.size):
        length = offsets[row + 1] - offsets[row]
        first = offsets[row] if step > 0 else offsets[row + 1] - 1
        matched = 0
        if length == length_before:
            while matched < length and packed[before + matched] == values[first + step * matched]:
                matched += 1
        if matched == length:
            # The list of the sample before, or an empty one.
            starts[row] = before
            length_before = length
            continue
        _fill_failures(values, first, step, length, failures)
        matched = 0
        place = max(end - max(length, length_before), 0)
        while place < end and matched < length:
            while matched and packed[place] != values[first + step * matched]:
                matched = failures[matched - 1]
            if packed[place] == values[first + step * matched]:
                matched += 1
            place += 1
        # Found whole, it ends where the search stopped; else what was matched last is the end of what is packed.
        before = place - matched
        for index in range(matched, length):
            packed[end] = values[first + step * index]
            end += 1
        starts[row], length_before = before, length
    return end


@numba.njit(cache=True, nogil=True)
def _fill_failures(
    values: npt.NDArray[np.int64], first: int, step: int, length: int, failures: npt.NDArray[np.int64]
) -> None:
    """For each beginning of a list: how long its longest proper beginning is that is also its end."""
    failures[0] = 0
    matched = 0
    for index in range(1, length):
        value = values[first + step * index]
        while matched and value != values[first + step * matched]:
            matched = failures[matched - 1]
        if value == values[first + step * matched]:
            matched += 1
        failures[index] = matched
