"""Compiled loops of `windrow.recsys.log.vocabulary`: hashes of texts, and a hash table from values to rows."""

import numba
import numpy as np
import numpy.typing as npt

from windrow.comm.inline_kernels import hash_id, mix64

__all__ = ["find_in_slots", "hash_texts"]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.integer]
Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD_BYTES = 8
EMPTY = -1


@numba.njit(cache=True, nogil=True)
def hash_texts(data: Bytes, offsets: Integers, key: np.uint64, hashes: Words) -> None:
    """Write to `hashes` [n] those of byte strings, which begin at `offsets` [n + 1] in `data`.

    The state starts with the length; each 8 bytes, read little-endian and filled up with zeros, go through the
    mixing function of `windrow.comm.random`: ``state = mix(state ^ mix(word + golden ratio))``.
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
def find_in_slots(wanted: Words, keys: Words, slots: Longs, found: Longs) -> None:
    """Write to `found` [m] for each of `wanted` [m] its position in `keys` [n], or -1.

    `slots` are those in which `windrow.recsys.batches.deduplication.distinct_lists_kernels.find_leaders` put the keys.
    """
    mask = np.uint64(slots.size - 1)
    for place in range(wanted.size):
        slot = wanted[place] & mask
        while slots[slot] != EMPTY and keys[slots[slot]] != wanted[place]:
            slot = (slot + np.uint64(1)) & mask
        found[place] = slots[slot]
