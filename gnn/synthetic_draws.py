"""What generators of graphs draw with: every number is a hash of (seed, what it is for, its position)."""

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = ["below", "distinct", "shuffled", "uniform"]


def uniform(positions: npt.NDArray[np.int64], seed: int, purpose: int) -> npt.NDArray[np.float64]:
    """Draw one number in [0, 1) for each position.

    Args:
        positions: int64, any shape.
        seed: another seed gives other numbers.
        purpose: and so does another purpose.

    Returns:
        float64 of the same shape: the top 53 bits of a hash.
    """
    hashes = hash_ids(stream_key(seed, Stream.GENERATE, purpose), positions) >> np.uint64(11)
    return hashes.astype(np.float64) * 2.0**-53


def below(limit: int, positions: npt.NDArray[np.int64], seed: int, purpose: int) -> npt.NDArray[np.int64]:
    """Draw one integer in [0, limit) for each position; see `uniform`.

    Args:
        limit: at least 1, far below 2**53.
        positions: int64, any shape.
        seed: another seed gives other numbers.
        purpose: and so does another purpose.

    Returns:
        int64 of the same shape.
    """
    return (uniform(positions, seed, purpose) * limit).astype(np.int64)


def shuffled(count: int, seed: int, purpose: int) -> npt.NDArray[np.int64]:
    """Put 0..count - 1 in a random order.

    Args:
        count: how many.
        seed: another seed gives another order.
        purpose: and so does another purpose.

    Returns:
        int64 [count], a permutation.

    Cost:
        One sort of `count` numbers.
    """
    return np.argsort(hash_ids(stream_key(seed, Stream.GENERATE, purpose), np.arange(count)))


def distinct(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort and drop repeats: numpy.unique gives the same, far more slowly.

    Args:
        keys: int64 [n]; sorted in place.

    Returns:
        int64, ascending without repeats.
    """
    keys.sort()
    first = np.concatenate((np.ones(min(keys.size, 1), dtype=bool), keys[1:] != keys[:-1]))
    return keys if first.all() else keys[first]
