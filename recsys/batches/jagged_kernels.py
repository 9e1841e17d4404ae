"""Compiled loops of `windrow.recsys.batches.jagged`: lists copied, windows packed, gradients of vectors added up.

Gradients are added in the order of what was copied, whatever runs beside.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import prefetch

__all__ = ["copy_lists", "move_vectors", "pack_lists", "selected_lengths"]

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.integer[Any]]
Longs = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def pack_lists(offsets: Integers, values: Longs, packed: Longs, starts: Longs) -> int:
    """Write lists behind one another so that each overlaps with what stands there already; how many values there are.

    `packed` is as long as all lists together; `starts` [n] gets where each list begins.
    """
    end, before, length_before = 0, 0, 0
    for row in range(starts.size):
        first, length = offsets[row], offsets[row + 1] - offsets[row]
        place = before if length in (0, length_before) else max(end - max(length, length_before), 0)
        matched = _matched(packed, place, end, values, first, length)
        if matched < length and length == length_before:
            place = max(end - length, 0)
            matched = _matched(packed, place, end, values, first, length)
        # Found whole, or up to the end of what is packed.
        while matched < length and place + matched < end:
            place += 1
            matched = _matched(packed, place, end, values, first, length)
        for index in range(matched, length):
            packed[end] = values[first + index]
            end += 1
        before, starts[row], length_before = place, place, length
    return end


@numba.njit(cache=True, nogil=True)
def _matched(packed: Longs, place: int, end: int, values: Longs, first: int, length: int) -> int:
    """How many values of a list stand at a place of what is packed."""
    matched = 0
    while matched < min(length, end - place) and packed[place + matched] == values[first + matched]:
        matched += 1
    return matched


AHEAD = 8
"""Lists between asking for one and copying it."""

CHUNK = 8
"""Values copied without a question in between: as many as a short list has, one or two vector instructions."""


@numba.njit(cache=True, nogil=True)
def selected_lengths(offsets: Integers, rows: Longs, lengths: Integers) -> int:
    """Lengths [n] of the lists `rows` [n], and their sum."""
    total = 0
    for index in range(rows.size):
        length = offsets[rows[index] + 1] - offsets[rows[index]]
        lengths[index] = length
        total += length
    return total


@numba.njit(cache=True, nogil=True)
def copy_lists(offsets: Integers, values: Array, rows: Longs, out: Array) -> None:
    """Copy the lists that `selected_lengths` measures one behind the other, to `out` of the type of `values`."""
    target, limit = np.uint64(0), np.uint64(min(out.size, values.size))
    for index in range(rows.size):
        # Where a list begins is as good as random: ask for it before it is needed.
        prefetch(values, offsets[rows[min(index + AHEAD, rows.size - 1)]])
        place = rows[index]
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


@numba.njit(nogil=True, cache=True)
def move_vectors(lists: Array, offsets: Longs, inverse: Longs, samples: Array, *, back: bool) -> None:
    """Write the vectors of each sample's list in `lists` [n, d] to `samples` [m, d], one sample behind the other.

    With `back` the transpose: the vectors of each sample are added to those of its list.
    """
    width = lists.shape[1]
    of_lists, of_samples = lists.reshape(-1), samples.reshape(-1)
    place = 0
    for sample in range(len(inverse)):
        first = offsets[inverse[sample]] * width
        size = offsets[inverse[sample] + 1] * width - first
        held, copy = of_lists[first : first + size], of_samples[place : place + size]
        if back:
            for index in range(size):
                held[index] += copy[index]
        else:
            for index in range(size):
                copy[index] = held[index]
        place += size
