"""Which row of its table a value has: by vocabulary, or by hash.

row 0        missing
row 1        a value that is not in the vocabulary
row 2 ...    the values of the training split, most frequent first, ties by value

Hashes of integers and text are the same on every machine and in every run.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batches.deduplication.distinct_lists_kernels import find_leaders
from windrow.recsys.log.vocabulary_kernels import find_in_slots, hash_texts

__all__ = ["FIRST_VALUE_ROW", "MISSING_ROW", "UNSEEN_ROW", "Vocabulary", "hash_values", "hashed_rows", "table_key"]

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
        """Make the vocabulary of a ``pyarrow.Array`` of int64 or string, all different, in the order of their rows."""
        # 2n slots or more, so that a search ends after a few of them.
        slots = np.empty(1 << max(2 * len(values), 2).bit_length(), np.int64)
        leaders = np.empty(len(values), np.int64)
        attempt = 0
        while True:
            key = stream_key(attempt, Stream.HASH_VALUES)
            hashes = hash_values(values, key)
            slots.fill(-1)
            find_leaders(hashes, slots, leaders)
            if (leaders == np.arange(len(values))).all():
                return cls(values=values, key=key, hashes=hashes, slots=slots)
            attempt += 1

    @property
    def rows(self) -> int:
        """Rows of the table: the values, and two."""
        return len(self.values) + FIRST_VALUE_ROW

    def rows_of(self, values: Any) -> npt.NDArray[np.int64]:
        """[n] row of each value of a ``pyarrow.Array`` of the vocabulary's type, without nulls; 1 for others. O(n)."""
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


def table_key(table: str) -> int:
    """The key that the values of a table are hashed with, from its name: so no two tables have the same collisions."""
    import pyarrow as pa

    return int(hash_values(pa.array([table]), stream_key(0, Stream.HASH_VALUES))[0])


def hash_values(values: Any, key: int) -> npt.NDArray[np.uint64]:
    """[n] hashes of a ``pyarrow.Array`` of int64 or string; what a null gives is without meaning.

    They are `windrow.comm.random.hash_ids` of integers, and `windrow.recsys.log.vocabulary_kernels.hash_texts` of the
    UTF-8 of text, with a key from `table_key` or `stream_key`.
    """
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        return hash_ids(key, _integers(values))
    hashes = np.empty(len(values), np.uint64)
    _, offset_buffer, data_buffer = values.buffers()
    offset_type: type[np.integer[Any]] = np.int64 if pa.types.is_large_string(values.type) else np.int32
    if len(values):
        offsets = np.frombuffer(offset_buffer, offset_type)[values.offset : values.offset + len(values) + 1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
        hash_texts(data, offsets, np.uint64(key), hashes)
    return hashes


def hashed_rows(values: Any, table: str, rows: int) -> npt.NDArray[np.int64]:
    """[n] rows of a ``pyarrow.Array`` of int64 or string without nulls in a table of at least 2 rows.

    1 + hash mod (rows - 1); row 0 is for missing values.
    """
    return (hash_values(values, table_key(table)) % np.uint64(rows - 1)).astype(np.int64) + 1


def _integers(values: Any) -> npt.NDArray[np.int64]:
    """The numbers of an Arrow array of int64; 0 or anything else where it is null."""
    _, buffer = values.buffers()
    if buffer is None:
        return np.zeros(len(values), np.int64)
    return np.frombuffer(buffer, np.int64)[values.offset : values.offset + len(values)]
