"""Compiled loops of `windrow.recsys.deduplication.distinct_lists`, each over one feature of a group.

A *run* is a maximal range of samples that are equal one after the other; everything but finding runs is done once for
each run. The compiler checks no bounds and, since positions are unsigned, no negative ones.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.prefetch_kernels import prefetch
from windrow.comm.random_kernels import mix64

__all__ = ["clear_repeats", "find_leaders", "mark_unequal", "mix_lists", "number_runs", "starts_of_runs"]

CHUNK = 16
"""Values compared without a question in between: enough to be compared 4 or 8 at a time, few enough to stop early."""

AHEAD = 8
"""Samples between asking for a list and comparing it."""

FACTOR = 0x9FB21C651E98DF25
"""Odd, bits well mixed: what a hash is multiplied by for each value."""

LANES = 4
"""Values hashed side by side, since a product takes 3 to 4 times as long as the step between two of them."""


@numba.njit(cache=True, nogil=True)
def clear_repeats(
    offsets: npt.NDArray[np.integer[Any]], values: npt.NDArray[np.integer[Any]], begins: npt.NDArray[np.bool_]
) -> None:
    """Note the samples whose list of one feature is not the one before.

    Args:
        offsets: [n + 1] where each list begins in `values`.
        values: of all lists.
        begins: [n]; set where the list differs from the one before, else left as it is.
    """
    if begins.size == 0:
        return
    before, start = np.uint64(offsets[0]), np.uint64(offsets[0])
    for row in range(begins.size):
        stop = np.uint64(offsets[row + 1])
        if not begins[row]:
            length = stop - start
            begins[row] = length != start - before or _differ(values, before, start, length)
        before, start = start, stop


@numba.njit(cache=True, nogil=True)
def starts_of_runs(begins: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> int:
    """Where runs begin.

    Args:
        begins: [n] whether a sample differs from the one before; true for the first.
        starts: [n + 1]; the first ``m + 1`` are written: first sample of each run, and n.

    Returns:
        m, how many runs there are.
    """
    count = 0
    for row in range(begins.size):
        starts[count] = row
        count += begins[row]
    if begins.size:
        # A start is written before it is known to be one, and kept by counting on: no branch to guess.
        starts[count] = begins.size
    return count


@numba.njit(cache=True, nogil=True)
def mix_lists(
    offsets: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[np.integer[Any]],
    rows: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
) -> None:
    """Mix the lists of one feature into hashes of samples.

    Args:
        offsets: [n + 1] where each list begins in `values`.
        values: of all lists.
        rows: [m] samples.
        hashes: [m] what was hashed of them so far; overwritten.
    """
    factor = np.uint64(FACTOR)
    for place in range(rows.size):
        position = np.uint64(offsets[rows[place]])
        stop = np.uint64(offsets[rows[place] + 1])
        first = hashes[place] ^ (stop - position)
        second, third, fourth = first + factor, first ^ factor, ~first
        while position + np.uint64(LANES) <= stop:
            first = _step(first, np.uint64(values[position]))
            second = _step(second, np.uint64(values[position + np.uint64(1)]))
            third = _step(third, np.uint64(values[position + np.uint64(2)]))
            fourth = _step(fourth, np.uint64(values[position + np.uint64(3)]))
            position += np.uint64(LANES)
        while position < stop:
            first = _step(first, np.uint64(values[position]))
            position += np.uint64(1)
        hashes[place] = mix64(_step(_step(first, second), _step(third, fourth)))


@numba.njit(cache=True, nogil=True)
def find_leaders(
    hashes: npt.NDArray[np.uint64], slots: npt.NDArray[np.int64], leaders: npt.NDArray[np.int64]
) -> None:
    """Find the first of all that have the same hash: open addressing, by the lowest bits.

    Args:
        hashes: [m].
        slots: power of two above m, all -1; overwritten.
        leaders: [m]; written: position of the first with this hash.
    """
    mask = np.uint64(slots.size - 1)
    for place in range(hashes.size):
        slot = hashes[place] & mask
        while slots[slot] >= 0 and hashes[slots[slot]] != hashes[place]:
            slot = (slot + np.uint64(1)) & mask
        if slots[slot] < 0:
            slots[slot] = place
        leaders[place] = slots[slot]


@numba.njit(cache=True, nogil=True)
def mark_unequal(
    offsets: npt.NDArray[np.integer[Any]],
    values: npt.NDArray[np.integer[Any]],
    rows: npt.NDArray[np.int64],
    leaders: npt.NDArray[np.int64],
    unequal: npt.NDArray[np.bool_],
) -> None:
    """Note samples whose list of one feature is not that of the sample they were taken to equal.

    Args:
        offsets: [n + 1] where each list begins in `values`.
        values: of all lists.
        rows: [m] samples.
        leaders: [m] sample that each is taken to equal.
        unequal: [m]; set where they differ, else left as it is.
    """
    for place in range(rows.size):
        row, leader = rows[place], leaders[place]
        # A leader is as good as anywhere: ask for where its list begins, then for the list, before they are needed.
        prefetch(offsets, leaders[min(place + 2 * AHEAD, rows.size - 1)])
        prefetch(values, offsets[leaders[min(place + AHEAD, rows.size - 1)]])
        if row != leader and not unequal[place]:
            start, against = np.uint64(offsets[row]), np.uint64(offsets[leader])
            length = np.uint64(offsets[row + 1]) - start
            unequal[place] = np.uint64(offsets[leader + 1]) - against != length or _differ(
                values, start, against, length
            )


@numba.njit(cache=True, nogil=True)
def number_runs(
    starts: npt.NDArray[np.int64],
    leaders: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    representatives: npt.NDArray[np.int64],
    inverse: npt.NDArray[np.int64],
) -> int:
    """Number distinct runs in order of their first, and give each sample the number of its run.

    Args:
        starts: [m + 1] first sample of each run, and n.
        leaders: [m] the first run that equals each.
        numbers: [m]; overwritten.
        representatives: [m]; the first U are written: first sample of each number.
        inverse: [n]; written: number of each sample.

    Returns:
        U.
    """
    count = 0
    for run in range(leaders.size):
        if leaders[run] == run:
            numbers[run] = count
            representatives[count] = starts[run]
            count += 1
        else:
            numbers[run] = numbers[leaders[run]]
        for row in range(starts[run], starts[run + 1]):
            inverse[row] = numbers[run]
    return count


@numba.njit(inline="always")
def _step(state: np.uint64, value: np.uint64) -> np.uint64:
    """One step of a hash: rotate, combine, multiply."""
    return (((state << np.uint64(29)) | (state >> np.uint64(35))) ^ value) * np.uint64(FACTOR)


@numba.njit(inline="always")
def _differ(
    values: npt.NDArray[np.integer[Any]], start: np.uint64, against: np.uint64, length: np.uint64
) -> bool:
    """Whether any of `length` values from one position on is not the one from another position on."""
    position = np.uint64(0)
    while length - position >= np.uint64(CHUNK):
        if values[start] != values[against]:
            return True
        difference = values[start] ^ values[start]
        for index in range(np.uint64(CHUNK)):
            difference |= values[start + index] ^ values[against + index]
        if difference != 0:
            return True
        start += np.uint64(CHUNK)
        against += np.uint64(CHUNK)
        position += np.uint64(CHUNK)
    while position < length:
        if values[start] != values[against]:
            return True
        start += np.uint64(1)
        against += np.uint64(1)
        position += np.uint64(1)
    return False
