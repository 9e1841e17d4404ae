"""Compiled loops of `windrow.recsys.batches.deduplication.distinct_lists`, each over one feature of a group.

A *run* is a maximal range of samples that are equal one after the other; everything but finding runs is done once for
each run. The compiler checks no bounds and, since positions are unsigned, no negative ones.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import mix64, prefetch
from windrow.comm.random import mix64 as python_mix64

__all__ = ["find_leaders", "mark_other_values", "mark_unequal", "mix_lists", "number_runs"]

Integers = npt.NDArray[np.integer[Any]]
Longs = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

CHUNK = 64
"""Values compared without a question in between: several vector instructions, few enough to stop early."""

FEW = 4
"""Values that are hashed one at a time: sooner done than a whole chunk."""

LINE = 8
"""Ids in a line of a processor's cache, of 64 bytes."""

LONG = 256
"""Values of equally long lists from which on memory is asked for in advance; fewer are compared before it comes."""

MOST = 4096
"""Values asked for at once: 32 KiB, which the nearest cache can hold."""

AHEAD = 8
"""Samples between asking for a list and comparing it."""

FACTORS = np.array([python_mix64(place + 1) | 1 for place in range(CHUNK)], np.uint64)
"""Odd and as good as random: what each value of a chunk is multiplied by before it is added to its hash. Sums of
products have no order to wait for, so that several are made at a time."""

LENGTH_FACTOR = np.uint64(python_mix64(CHUNK + 1) | 1)
"""What lengths are multiplied by: small as they are, sums of products of small ids would make up for them."""

HALF_BITS = 32
"""High bits are added to the low half too: a product carries what differs up, never down."""


@numba.njit(cache=True, nogil=True)
def mark_other_values(offsets: Integers, values: Integers, starts: Longs, begins: Marks) -> None:
    """Note in `begins` the samples whose list of one feature is as long as the one before and has other values.

    Lists of one length are compared as one: each value with the one that comes a list before. So nothing is asked
    at the end of a list, which a processor could not guess. From each of `starts` [m + 1] to the next, and to n at
    the end, lists have one length.
    """
    asked = np.int64(0)
    for stretch in range(starts.size - 1):
        row, end = starts[stretch] + 1, starts[stretch + 1]
        start, stop = np.uint64(offsets[row]), np.uint64(offsets[end])
        length = start - np.uint64(offsets[row - 1])
        if stop - start >= np.uint64(LONG):
            # Processors fetch ahead by themselves, but not across pages of memory.
            asked = max(asked, np.int64(start))
            ahead = min(np.int64(stop), np.int64(start) + MOST) + LONG
            while asked < ahead and asked < values.size:
                prefetch(values, asked)
                asked += LINE
        if length == 1:
            for index in range(stop - start):
                differs = values[start + index] != values[start + index - np.uint64(1)]
                begins[np.uint64(row) + index] |= differs
            continue
        while start < stop:
            equal = _equal_values(values, start - length, start, stop - start)
            if equal == stop - start:
                break
            row += np.int64(equal // length)
            begins[row] = True
            row += 1
            start = np.uint64(offsets[row])


@numba.njit(cache=True, nogil=True)
def mix_lists(offsets: Integers, values: Integers, rows: Longs, hashes: Words) -> None:
    """Mix the lists of one feature into `hashes` [m] of the samples `rows` [m].

    From the length of a list on, ``hash = mix(hash ^ sum of folded value * factor of its place)`` for each chunk.
    """
    for place in range(rows.size):
        # Between first samples of runs lie lists that are not read: ask for the list after the next, if it is long.
        later = rows[min(place + 2, rows.size - 1)]
        if offsets[later + 1] - offsets[later] > CHUNK:
            for line in range(offsets[later], offsets[later + 1], LINE):
                prefetch(values, line)
        position = np.uint64(offsets[rows[place]])
        stop = np.uint64(offsets[rows[place] + 1])
        state = hashes[place] ^ ((stop - position + np.uint64(1)) * LENGTH_FACTOR)
        while stop - position > np.uint64(CHUNK):
            total = np.uint64(0)
            for index in range(np.uint64(CHUNK)):
                total += _folded(values[position + index]) * FACTORS[index]
            state = mix64(state ^ total)
            position += np.uint64(CHUNK)
        total, rest = np.uint64(0), stop - position
        if rest <= np.uint64(FEW) or position + np.uint64(CHUNK) > np.uint64(values.size):
            for index in range(rest):
                total += _folded(values[position + index]) * FACTORS[index]
        else:
            for index in range(np.uint64(CHUNK)):
                product = _folded(values[position + index]) * FACTORS[index]
                total += product if index < rest else np.uint64(0)
        hashes[place] = mix64(state ^ total)


@numba.njit(cache=True, nogil=True)
def find_leaders(hashes: Words, slots: Longs, leaders: Longs) -> None:
    """Write for each of [m] hashes the position of the first that equals it: open addressing, by the lowest bits.

    `slots` is a power of two above m, all -1.
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
def mark_unequal(offsets: Integers, values: Integers, rows: Longs, leaders: Longs, unequal: Marks) -> None:
    """Note in `unequal` [m] samples `rows` whose list of one feature is not that of `leaders`, taken to equal them."""
    for place in range(rows.size):
        row, leader = rows[place], leaders[place]
        # A leader is as good as anywhere: ask for where its list begins, then for the list, before they are needed.
        prefetch(offsets, leaders[min(place + 2 * AHEAD, rows.size - 1)])
        prefetch(values, offsets[leaders[min(place + AHEAD, rows.size - 1)]])
        if row != leader and not unequal[place]:
            start, against = np.uint64(offsets[row]), np.uint64(offsets[leader])
            length = np.uint64(offsets[row + 1]) - start
            unequal[place] = (
                np.uint64(offsets[leader + 1]) - against != length
                or _equal_values(values, start, against, length) != length
            )


@numba.njit(cache=True, nogil=True)
def number_runs(
    starts: Longs, leaders: Longs, begins: Marks, numbers: Longs, representatives: Longs, hashes: Words, inverse: Longs
) -> int:
    """Number distinct runs in order of their first, and give each sample the number of its run; how many there are, U.

    Runs are given by first sample [m], first run that equals each, and [n] whether a sample begins one. `numbers` [m]
    is scratch; the first U of `representatives` [m + 1] and `hashes` [m] become first sample and hash of each number.
    """
    count = 0
    for run in range(leaders.size):
        leads = leaders[run] == run
        # Written before it is known to be one, and kept by counting on: no branch to guess.
        numbers[run] = count
        representatives[count] = starts[run]
        hashes[count] = hashes[run]
        numbers[run] = numbers[leaders[run]]
        count += leads
    run = -1
    for row in range(begins.size):
        run += begins[row]
        inverse[row] = numbers[run]
    return count


@numba.njit(inline="always")
def _folded(value: np.integer[Any]) -> np.uint64:
    """The high half added to the low one."""
    return np.uint64(value) ^ (np.uint64(value) >> np.uint64(HALF_BITS))


@numba.njit(inline="always")
def _equal_values(values: Integers, one: np.uint64, other: np.uint64, limit: np.uint64) -> np.uint64:
    """How many values from one position on equal those from another position on, at most `limit`."""
    count = np.uint64(0)
    if limit >= np.uint64(CHUNK):
        # The last chunk reaches back over what was compared before.
        while values[one + count] == values[other + count]:
            difference = values[one] ^ values[one]
            for index in range(np.uint64(CHUNK)):
                difference |= values[one + count + index] ^ values[other + count + index]
            if difference != 0:
                break
            if count + np.uint64(CHUNK) == limit:
                return limit
            count = min(count + np.uint64(CHUNK), limit - np.uint64(CHUNK))
    while count < limit and values[one + count] == values[other + count]:
        count += np.uint64(1)
    return count
