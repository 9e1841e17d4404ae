"""The vocabulary of a table: which value is which row.

row 0        missing
row 1        a value that is not in the vocabulary
row 2 ...    the values of the training split, most frequent first, ties by value
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, stream_key
from windrow.recsys.hashing import hash_values
from windrow.recsys.hashing_kernels import fill_slots, find_in_slots

__all__ = ["FIRST_VALUE_ROW", "MISSING_ROW", "UNSEEN_ROW", "Vocabulary"]

MISSING_ROW = 0
UNSEEN_ROW = 1
FIRST_VALUE_ROW = 2


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Vocabulary:
    """Finds the rows of values: exact, about 40 bytes for each value beside the values themselves."""

    values: Any
    """``pyarrow.Array`` of int64 or string: value of row 2, 3, ..."""
    key: int
    """What the values are hashed with: chosen so that no two of them have the same hash."""
    hashes: npt.NDArray[np.uint64]
    """[n] hash of each value."""
    slots: npt.NDArray[np.int64]
    """Hash table over `hashes`."""

    @classmethod
    def of(cls, values: Any) -> Self:
        """Make the vocabulary of some values.

        Args:
            values: ``pyarrow.Array`` of int64 or string, all different, in the order of their rows.

        Cost: O(n).
        """
        # 2n slots or more, so that a search ends after a few of them.
        slots = np.empty(1 << max(2 * len(values), 2).bit_length(), np.int64)
        attempt = 0
        while True:
            key = stream_key(attempt, Stream.HASH_VALUES)
            hashes = hash_values(values, key)
            slots.fill(-1)
            if fill_slots(hashes, slots) < 0:
                return cls(values=values, key=key, hashes=hashes, slots=slots)
            attempt += 1

    @property
    def rows(self) -> int:
        """Rows of the table: the values, and two."""
        return len(self.values) + FIRST_VALUE_ROW

    def rows_of(self, values: Any) -> npt.NDArray[np.int64]:
        """The row of each value.

        Args:
            values: ``pyarrow.Array`` of the vocabulary's type, without nulls.

        Returns:
            [n] rows: 2 and up, or 1 for a value that is not in the vocabulary. O(n).
        """
        import pyarrow as pa
        from pyarrow import compute

        found = np.empty(len(values), np.int64)
        find_in_slots(hash_values(values, self.key), self.hashes, self.slots, found)
        # Hashes of the vocabulary differ, but another value may have one of them by chance. For integers the hash is
        # a bijection of 64 bits, so it cannot.
        if not pa.types.is_integer(values.type):
            candidates = np.flatnonzero(found >= 0)
            same = compute.equal(values.take(candidates), self.values.take(found[candidates]))
            found[candidates[~same.to_numpy(zero_copy_only=False)]] = -1
        return np.where(found < 0, UNSEEN_ROW, found + FIRST_VALUE_ROW)
