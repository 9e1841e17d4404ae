"""The functions of `windrow.comm.random` for code compiled by Numba, equal bit for bit."""

import numba
import numpy as np

from windrow.comm.random import FIRST_MULTIPLIER, GOLDEN, SECOND_MULTIPLIER

__all__ = ["hash_id", "mix64"]

_FIRST = np.uint64(FIRST_MULTIPLIER)
_SECOND = np.uint64(SECOND_MULTIPLIER)
_GOLDEN = np.uint64(GOLDEN)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@numba.njit(inline="always", cache=True)
def mix64(value: np.uint64) -> np.uint64:
    """Mix one 64-bit integer (SplitMix64 finaliser); see `windrow.comm.random.mix64`."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@numba.njit(inline="always", cache=True)
def hash_id(key: np.uint64, number: np.uint64) -> np.uint64:
    """Draw the 64-bit number of one id; see `windrow.comm.random.hash_ids`."""
    return mix64(key ^ mix64(number + _GOLDEN))
