"""Compiled loops of `windrow.recsys.batches.deduplication.ikjt`: windows are packed, lists copied, rows renumbered."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch

__all__ = ["copy_lists", "number_by_first", "pack_lists", "selected_lengths"]


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
