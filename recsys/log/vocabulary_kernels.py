"""Compiled loops of `windrow.recsys.log.vocabulary`: hashes of texts, and a hash table from values to rows."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64

__all__ = ["fill_slots", "find_in_slots", "hash_texts"]

WORD_BYTES = 8
EMPTY = -1


@numba.njit(cache=True, nogil=True)
def hash_texts(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.integer],
    key: np.uint64,
    hashes: npt.NDArray[np.uint64],
) -> None:
    """Hash byte strings; see `windrow.recsys.log.vocabulary.hash_text`.

    Args:
        data: the strings, one behind the other.
        offsets: [n + 1] where each begins.
        key: from `stream_key`.
        hashes: [n]; written.
    """
    for text in range(hashes.size):
        start, stop = offsets[text], offsets[text + 1]
        state = mix64(key ^ np.uint64(stop - start))
        position = start
        while position < stop:
            word = np.uint64(0)
            for place in range(min(WORD_BYTES, stop - position)):
                word |= np.uint64(data[position + place]) << np.uint64(8 * place)
            state = hash_id(state, word)
            position += WORD_BYTES
        hashes[text] = state


@numba.njit(cache=True, nogil=True)
def fill_slots(keys: npt.NDArray[np.uint64], slots: npt.NDArray[np.int64]) -> int:
    """Fill a hash table with open addressing: slot of a key is its lowest bits, or the next free one.

    Args:
        keys: [n] well mixed.
        slots: power of two above n, all -1; written: positions in `keys`.

    Returns:
        A position whose key was there before, or -1 where all keys differ.
    """
    mask = np.uint64(slots.size - 1)
    for position in range(keys.size):
        slot = keys[position] & mask
        while slots[slot] != EMPTY:
            if keys[slots[slot]] == keys[position]:
                return position
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = position
    return -1


@numba.njit(cache=True, nogil=True)
def find_in_slots(
    wanted: npt.NDArray[np.uint64],
    keys: npt.NDArray[np.uint64],
    slots: npt.NDArray[np.int64],
    found: npt.NDArray[np.int64],
) -> None:
    """Look keys up in a table made by `fill_slots`.

    Args:
        wanted: [m].
        keys: [n] as given to `fill_slots`.
        slots: as written by it.
        found: [m]; written: position in `keys`, or -1.
    """
    mask = np.uint64(slots.size - 1)
    for place in range(wanted.size):
        slot = wanted[place] & mask
        while slots[slot] != EMPTY and keys[slots[slot]] != wanted[place]:
            slot = (slot + np.uint64(1)) & mask
        found[place] = slots[slot]
