"""Counter-based randomness: a value is a pure function of what it is for, never of who draws it or when.

Every random number of the project is ``hash(key, id)`` with ``key = stream_key(seed, stream, epoch, step, ...)``.
Nothing holds generator state, so nothing needs saving in a checkpoint beyond the position (epoch, step), and
the same vertex draws the same numbers on 1, 2 or 4 ranks.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014): a bijection of 64-bit integers in which every input bit flips every output bit with
probability close to one half. ``windrow.comm.inline_kernels`` holds the same functions for compiled code.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Stream", "hash_ids", "mix64", "mixed", "permuted", "shifted", "signed", "stream_key"]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB
MULTIPLIERS_32 = 0x21F0AAAD, 0xD35A2D97
"""Those of least bias that the search of Wellons' hash-prospector had found."""


class Stream(IntEnum):
    """What a random number is for: two uses never share a stream."""

    SHUFFLE = 1
    SAMPLE = 2
    DROPOUT = 3
    INITIALISE = 4
    PARTITION = 5
    SPLIT = 6
    GENERATE = 7
    NEGATIVE = 8
    HISTORY = 9
    HASH_VALUES = 10
    AUDIENCE = 11
    QUANTISE = 12
    BOUNDARY = 13


def mix64(value: int) -> int:
    """Mix the lowest 64 bits of an integer (SplitMix64 finaliser) into an integer in [0, 2**64)."""
    value &= MASK
    value = ((value ^ (value >> 30)) * FIRST_MULTIPLIER) & MASK
    value = ((value ^ (value >> 27)) * SECOND_MULTIPLIER) & MASK
    return value ^ (value >> 31)


def mixed(values: "Tensor") -> "Tensor":
    """`mix64` of int64 numbers on any device, taken for unsigned."""
    values = (values ^ shifted(values, 30)) * signed(FIRST_MULTIPLIER)
    values = (values ^ shifted(values, 27)) * signed(SECOND_MULTIPLIER)
    return values ^ shifted(values, 31)


def shifted(values: "Tensor", bits: int) -> "Tensor":
    """Move bits of int64 numbers to the right and zeros in: PyTorch would fill up with the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def signed(number: int) -> int:
    """An unsigned 64-bit number as PyTorch has it."""
    return number - (1 << 64) if number >> 63 else number


def stream_key(seed: int, *counters: int) -> int:
    """Fold a seed and any number of counters into one 64-bit key.

    Args:
        seed: the run's seed.
        counters: what the numbers are for, for example ``Stream.SAMPLE, epoch, step, hop``. Order matters.
    """
    # Seed, counters and ids are each mixed with a constant of their own: equal values must not cancel out.
    key = mix64(seed ^ SECOND_MULTIPLIER)
    for counter in counters:
        key = mix64(key + mix64(counter ^ FIRST_MULTIPLIER))
    return key


def hash_ids(key: int, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    """Draw one 64-bit number for each of some ids, of any shape, which depends on (key, id) alone; see `stream_key`."""
    return _mix64_array(np.uint64(key) ^ _mix64_array(ids.astype(np.uint64) + np.uint64(GOLDEN)))


FEISTEL_ROUNDS = 8
"""With 4, orders of 5 are not equally likely; with 8 nothing was seen, of 5 to 20 things."""


def permuted(key: int, places: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Draw what stands at some places of a random order of 0 to size - 1, without drawing all of it.

    A Feistel network (Luby, Rackoff: How to Construct Pseudorandom Permutations, SIAM J. Comput. 1988) permutes the
    numbers of an even number of bits; one that is not below `size` is permuted again until it is, fewer than four times
    on average. `places` are int64 [n], from 0 to size - 1, and so is the result: all places give each number once.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> half, values[outside] & mask
        for number in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (hash_ids(stream_key(key, number), right) & mask)
        values[outside] = left << half | right
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _mix64_array(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(FIRST_MULTIPLIER)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(SECOND_MULTIPLIER)
    return value ^ (value >> np.uint64(31))
