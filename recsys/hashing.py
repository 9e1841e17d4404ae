"""Hashes of what a log holds, integers and text: the same on every machine and in every run."""

from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.random import MASK, Stream, hash_ids, mix64, stream_key
from windrow.recsys.hashing_kernels import hash_texts

__all__ = ["hash_text", "hash_values", "hashed_rows", "integers", "table_key"]

WORD_BYTES = 8
GOLDEN = 0x9E3779B97F4A7C15


def table_key(table: str) -> int:
    """The key that a table's values are hashed with, so that no two tables have the same collisions.

    Args:
        table: its name.
    """
    return hash_text(table.encode(), stream_key(0, Stream.HASH_VALUES))


def hash_text(text: bytes, key: int) -> int:
    """Hash one byte string: the reference of `hash_values`.

    The state starts with the length; each 8 bytes, read little-endian and filled up with zeros, go through the
    mixing function of `windrow.comm.random`: ``state = mix(state ^ mix(word + golden ratio))``.

    Args:
        text: any bytes.
        key: from `stream_key`.

    Returns:
        An integer in [0, 2**64).
    """
    state = mix64(key ^ len(text))
    for start in range(0, len(text), WORD_BYTES):
        word = int.from_bytes(text[start : start + WORD_BYTES], "little")
        state = mix64(state ^ mix64((word + GOLDEN) & MASK))
    return state


def hash_values(values: Any, key: int) -> npt.NDArray[np.uint64]:
    """Hash an Arrow array of integers or text.

    Args:
        values: ``pyarrow.Array`` of int64 or string; what a null gives is without meaning.
        key: from `table_key` or `stream_key`.

    Returns:
        [n] hashes: `windrow.comm.random.hash_ids` of integers, `hash_text` of the UTF-8 of text.
    """
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        return hash_ids(key, integers(values))
    hashes = np.empty(len(values), np.uint64)
    _, offset_buffer, data_buffer = values.buffers()
    offset_type: type[np.integer[Any]] = np.int64 if pa.types.is_large_string(values.type) else np.int32
    if len(values):
        offsets = np.frombuffer(offset_buffer, offset_type)[values.offset : values.offset + len(values) + 1]
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
        hash_texts(data, offsets, np.uint64(key), hashes)
    return hashes


def hashed_rows(values: Any, table: str, rows: int) -> npt.NDArray[np.int64]:
    """Rows of a table whose values are hashed: 1 + hash mod (rows - 1).

    Args:
        values: ``pyarrow.Array`` of int64 or string without nulls.
        table: name of the table.
        rows: of the table, at least 2.

    Returns:
        [n] in 1 .. rows - 1; row 0 is for missing values.
    """
    return (hash_values(values, table_key(table)) % np.uint64(rows - 1)).astype(np.int64) + 1


def integers(values: Any) -> npt.NDArray[np.int64]:
    """The numbers of an Arrow array of int64; 0 or anything else where it is null.

    Args:
        values: ``pyarrow.Array`` of int64.
    """
    _, buffer = values.buffers()
    if buffer is None:
        return np.zeros(len(values), np.int64)
    return np.frombuffer(buffer, np.int64)[values.offset : values.offset + len(values)]
