"""Compiled loops of `windrow.recsys.batches.windows`, which puts batches together.

Distinct rows lie where their row groups were decoded, in many arrays. Two tables tell a loop where they are. For a
feature of a group in one row group, ``table[source, feature]`` holds `FIELDS` integers::

    STARTS    address of int64 [U]: where the list of each row begins in its ids
    LENGTHS   address of int64 [U]: how long it is
    IDS       address of int64 ids
    WEIGHTS   address of float32 weights; 0 where there are none

For a group, ``group_table[source, group]`` holds `GROUP_FIELDS`::

    HASHES    address of uint64 hashes of rows [U]
    UNIQUE    U

Whoever calls a loop keeps these arrays alive meanwhile. Features are numbered through all groups: those of group g are
``bounds[g] .. bounds[g + 1] - 1``.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]  # numba's list of what it exports leaves this out
from numba.core import cgutils, types
from numba.extending import intrinsic

from windrow.comm.inline_kernels import prefetch

__all__ = [
    "FIELDS",
    "GROUP_FIELDS",
    "HASHES",
    "IDS",
    "LENGTHS",
    "SOURCE_BITS",
    "STARTS",
    "UNIQUE",
    "WEIGHTS",
    "copy_lists",
    "find_lists",
    "number_rows",
]

STARTS, LENGTHS, IDS, WEIGHTS = range(4)
FIELDS = 4

HASHES, UNIQUE = range(2)
GROUP_FIELDS = 2

SOURCE_BITS = 32
"""A sample's code is the number of its row, and from this bit on which of its window's row groups has it."""

ID_BYTES = 8
WEIGHT_BYTES = 4

AHEAD = 8
"""Lists between asking for one and copying it."""


def _pointer(_typing_context: object, address: types.Integer) -> tuple[Any, Callable[..., Any]]:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


pointer = cast("Callable[[np.int64], Any]", intrinsic(_pointer))


@numba.njit(nogil=True, cache=True)
def number_rows(
    codes: npt.NDArray[np.int64],
    piece_stops: npt.NDArray[np.int64],
    piece_sources: npt.NDArray[np.int64],
    table: npt.NDArray[np.int64],
    group_table: npt.NDArray[np.int64],
    bounds: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32],
    sources: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    inverse: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
) -> None:
    """Number the distinct rows of a batch, for each group in the order in which samples first have them.

    A sample mostly has the row of the one before it. Another row is looked up by its place first, which costs one
    read; only one that comes for the first time is looked up by its hash, so that equal rows of two row groups get one
    number, and compared with what has the same hash.

    `codes` [G, B] have the row of each sample and, from `SOURCE_BITS` on, which of its piece's sources has it; pieces
    end at `piece_stops` [P], and `piece_sources` [P, any] says where their sources stand in `table`. `numbers` is
    scratch of -1, as long as all sources of any group have rows; `slots` a power of two from 2 * B on.
    Written: `counts` [G], U; up to that `sources` and `rows` [G, B] of each new number; `inverse` [G, B].
    """
    num_groups, num_samples = codes.shape
    num_sources = len(table)
    mask = np.uint64(len(slots) - 1)
    low_bits = (np.int64(1) << SOURCE_BITS) - 1
    bases = np.empty(num_sources, np.int64)
    touched = np.empty(num_samples, np.int64)
    hashes = np.empty(num_samples, np.uint64)
    for group in range(num_groups):
        total = 0
        for source in range(num_sources):
            bases[source] = total
            total += group_table[source, group, UNIQUE]
        slots[:] = -1
        count = num_touched = start = 0
        for piece in range(len(piece_stops)):
            before, number = np.int64(-1), np.int32(-1)
            for place in range(start, piece_stops[piece]):
                code = codes[group, place]
                if code == before:
                    inverse[group, place] = number
                    continue
                before = code
                source, row = piece_sources[piece, code >> SOURCE_BITS], code & low_bits
                known = bases[source] + row
                number = numbers[known]
                if number < 0:
                    at = group_table[source, group, HASHES]
                    hashed = carray(pointer(at), (row + 1,), np.uint64)[row]
                    slot = hashed & mask
                    while slots[slot] >= 0:
                        number = slots[slot]
                        other = (sources[group, number], rows[group, number])
                        if hashes[number] == hashed and _equal(
                            table, bounds[group], bounds[group + 1], (source, row), other
                        ):
                            break
                        slot = (slot + np.uint64(1)) & mask
                    if slots[slot] < 0:
                        number = np.int32(count)
                        slots[slot] = number
                        hashes[count] = hashed
                        sources[group, count] = source
                        rows[group, count] = row
                        count += 1
                    numbers[known] = number
                    touched[num_touched] = known
                    num_touched += 1
                inverse[group, place] = number
            start = piece_stops[piece]
        counts[group] = count
        # Only what was written: a batch has far fewer rows than its row groups.
        for index in range(num_touched):
            numbers[touched[index]] = -1


@numba.njit(nogil=True, cache=True)
def find_lists(
    table: npt.NDArray[np.int64],
    bounds: npt.NDArray[np.int64],
    sources: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    ids_at: npt.NDArray[np.int64],
    weights_at: npt.NDArray[np.int64],
) -> None:
    """Find the lists of a batch, N rows of all features together: those of the first feature first, in it by row.

    Written: `offsets` [N + 1] in the batch, `ids_at` [N] the address of each list's ids, `weights_at` [N] of its
    weights, 0 for none; it is empty where no group has weights.
    """
    place = 0
    offsets[0] = 0
    for group in range(len(counts)):
        last = counts[group] - 1
        for feature in range(bounds[group], bounds[group + 1]):
            for number in range(counts[group]):
                # Where a row is listed is as good as random: ask for it before it is needed.
                ahead = min(number + AHEAD, last)
                for field in (STARTS, LENGTHS):
                    at = table[sources[group, ahead], feature, field] + rows[group, ahead] * ID_BYTES
                    prefetch(carray(pointer(at), (1,), np.int64), 0)
                source = sources[group, number]
                begin, length = _list_at(table, source, feature, rows[group, number])
                offsets[place + 1] = offsets[place] + length
                ids_at[place] = table[source, feature, IDS] + begin * ID_BYTES
                if len(weights_at):
                    at = table[source, feature, WEIGHTS]
                    weights_at[place] = at + begin * WEIGHT_BYTES if at != 0 else 0
                place += 1


@numba.njit(nogil=True, cache=True)
def copy_lists(addresses: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
    """Copy lists from `addresses` [N], 0 for none, to where `offsets` [N + 1] say, of the type of `out`."""
    count = len(addresses)
    for place in range(count):
        # Where a list lies is as good as random: ask for it before it is needed.
        ahead = addresses[min(place + AHEAD, count - 1)]
        prefetch(carray(pointer(ahead), (1,), out.dtype), 0)
        if addresses[place] != 0:
            begin, length = offsets[place], offsets[place + 1] - offsets[place]
            values = carray(pointer(addresses[place]), (length,), out.dtype)
            for index in range(length):
                out[begin + index] = values[index]


@numba.njit(nogil=True, cache=True)
def _list_at(table: npt.NDArray[np.int64], source: int, feature: int, row: int) -> tuple[int, int]:
    """Where the list of a feature and row begins in its ids, and how long it is."""
    starts = carray(pointer(table[source, feature, STARTS]), (row + 1,), np.int64)
    lengths = carray(pointer(table[source, feature, LENGTHS]), (row + 1,), np.int64)
    return starts[row], lengths[row]


@numba.njit(nogil=True, cache=True)
def _equal(
    table: npt.NDArray[np.int64], first_feature: int, end_feature: int, first: tuple[int, int], second: tuple[int, int]
) -> bool:
    """Whether two rows, (source, row), have equal lists in all features, and weights of equal bits."""
    for feature in range(first_feature, end_feature):
        begin, length = _list_at(table, first[0], feature, first[1])
        other, other_length = _list_at(table, second[0], feature, second[1])
        if length != other_length:
            return False
        ids = carray(pointer(table[first[0], feature, IDS]), (begin + length,), np.int64)
        other_ids = carray(pointer(table[second[0], feature, IDS]), (other + length,), np.int64)
        for index in range(length):
            if ids[begin + index] != other_ids[other + index]:
                return False
        if table[first[0], feature, WEIGHTS] != 0:
            weights = carray(pointer(table[first[0], feature, WEIGHTS]), (begin + length,), np.int32)
            other_weights = carray(pointer(table[second[0], feature, WEIGHTS]), (other + length,), np.int32)
            for index in range(length):
                if weights[begin + index] != other_weights[other + index]:
                    return False
    return True
