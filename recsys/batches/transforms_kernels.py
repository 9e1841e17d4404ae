"""Compiled loops of `windrow.recsys.batches.transforms`."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64

__all__ = ["transform_ids", "transform_lists"]

NO_LIMIT = -1
SHORT = 32
"""Lists up to this length are sorted by insertion, which needs no memory."""


@numba.njit(cache=True, nogil=True)
def transform_ids(
    ids: npt.NDArray[np.int64], low: int, high: int, hash_rows: int, key: np.uint64, out: npt.NDArray[np.int64]
) -> None:
    """Clip ids to low .. high and hash them to `hash_rows` rows, 0 for no hashing."""
    for place in range(len(ids)):
        out[place] = _changed(ids[place], low, high, hash_rows, key)


@numba.njit(inline="always")
def _changed(number: Any, low: int, high: int, hash_rows: int, key: np.uint64) -> Any:
    number = min(max(number, low), high)
    if hash_rows > 0 and number != 0:
        number = np.int64(hash_id(key, np.uint64(number)) % np.uint64(hash_rows - 1)) + 1
    return number


@numba.njit(cache=True, nogil=True)
def transform_lists(
    offsets: npt.NDArray[np.integer],
    ids: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float32],
    dropped: npt.NDArray[np.int64],
    clip_and_hash: tuple[int, int, int, np.uint64],
    keep: tuple[int, int],
    slots: int,
    switches: tuple[bool, bool],
    out_offsets: npt.NDArray[np.int64],
    out_ids: npt.NDArray[np.int64],
    out_weights: npt.NDArray[np.float32],
) -> None:
    """Do all steps of a feature to one list after the other; see `windrow.recsys.batches.transforms`.

    `offsets` may start past 0; `weights` are empty where there are none. `dropped` are the sorted ids that are left
    out, `clip_and_hash` low, high, rows and key of `transform_ids`, `keep` the most ids of a list that stay, first ones
    and last ones or `NO_LIMIT`. Of equal ids the first alone stays where there are `slots`: a power of two, at least
    twice the longest list. `switches` say whether to sort, and whether to turn round. Written: `out_offsets` [n + 1],
    `out_ids` and `out_weights`, as long as all lists together at least.
    """
    low, high, hash_rows, key = clip_and_hash
    keep_first, keep_last = keep
    distinct, (sort, reverse) = slots > 0, switches
    weighted = len(weights) > 0
    slot_rows, slot_ids = np.full(slots, -1, np.int64), np.empty(slots, np.int64)
    used = 0
    out_offsets[0] = 0
    for row in range(len(offsets) - 1):
        start, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if len(dropped) == 0 and not distinct:
            # What is cut off need not be looked at.
            if keep_first != NO_LIMIT:
                stop = min(stop, start + keep_first)
            if keep_last != NO_LIMIT:
                start = max(start, stop - keep_last)
        begin = used
        for place in range(start, stop):
            number = ids[place]
            if len(dropped) and _holds(dropped, number):
                continue
            number = _changed(number, low, high, hash_rows, key)
            if distinct and not _add(slot_rows, slot_ids, number, row):
                continue
            out_ids[used] = number
            if weighted:
                out_weights[used] = weights[place]
            used += 1
        if keep_first != NO_LIMIT:
            used = min(used, begin + keep_first)
        if keep_last != NO_LIMIT and used - begin > keep_last:
            surplus = used - begin - keep_last
            for place in range(begin, begin + keep_last):
                out_ids[place] = out_ids[place + surplus]
                if weighted:
                    out_weights[place] = out_weights[place + surplus]
            used -= surplus
        if sort:
            _sort(out_ids, out_weights, begin, used)
        if reverse:
            out_ids[begin:used] = out_ids[begin:used][::-1].copy()
            if weighted:
                out_weights[begin:used] = out_weights[begin:used][::-1].copy()
        out_offsets[row + 1] = used


@numba.njit(cache=True, nogil=True)
def _holds(ascending: npt.NDArray[np.int64], number: int) -> bool:
    place = np.searchsorted(ascending, number)
    return bool(place < len(ascending) and ascending[place] == number)


@numba.njit(cache=True, nogil=True)
def _add(rows: npt.NDArray[np.int64], held: npt.NDArray[np.int64], number: int, row: int) -> bool:
    """Enter an id of a list; False where it is there already. A slot of another list's is free."""
    mask = np.uint64(len(rows) - 1)
    slot = mix64(np.uint64(number)) & mask
    while rows[slot] == row:
        if held[slot] == number:
            return False
        slot = (slot + np.uint64(1)) & mask
    rows[slot] = row
    held[slot] = number
    return True


@numba.njit(cache=True, nogil=True)
def _sort(ids: npt.NDArray[np.int64], weights: npt.NDArray[np.float32], begin: int, end: int) -> None:
    """Sort part of the ids, stable, and their weights with them, where there are any."""
    weighted = len(weights) > 0
    if end - begin <= SHORT:
        for place in range(begin + 1, end):
            number, target = ids[place], place
            weight = weights[place] if weighted else np.float32(0)
            while target > begin and ids[target - 1] > number:
                ids[target] = ids[target - 1]
                if weighted:
                    weights[target] = weights[target - 1]
                target -= 1
            ids[target] = number
            if weighted:
                weights[target] = weight
    elif not weighted:
        ids[begin:end] = np.sort(ids[begin:end])
    else:
        order = np.argsort(ids[begin:end], kind="mergesort")
        ids[begin:end] = ids[begin:end][order]
        weights[begin:end] = weights[begin:end][order]
