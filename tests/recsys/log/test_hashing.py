"""windrow.recsys.log.vocabulary: the same numbers as the reference, for every kind of array."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.random import hash_ids
from windrow.recsys.log.vocabulary import hash_text, hash_values, hashed_rows, integers, table_key


@given(st.lists(st.text(max_size=30)), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_text_is_hashed_as_the_reference_says(texts: list[str], key: int, start: int) -> None:
    expected = [hash_text(text.encode(), key) for text in texts[start:]]
    for kind in (pa.string(), pa.large_string()):
        array = pa.array(texts, kind).slice(start)
        assert hash_values(array, key).tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 3))
def test_integers_are_hashed_as_ids(numbers: list[int], start: int) -> None:
    array = pa.array(numbers, pa.int64()).slice(start)
    assert np.array_equal(hash_values(array, 5), hash_ids(5, np.array(numbers[start:], np.int64)))
    assert integers(array).tolist() == numbers[start:]


def test_hashed_rows_spread_over_all_rows_but_that_of_missing_values() -> None:
    rows = hashed_rows(pa.array(np.arange(100_000)), "user", 11)
    counts = np.bincount(rows, minlength=11)
    assert counts[0] == 0
    assert counts[1:].min() > 9_500
    assert (rows != hashed_rows(pa.array(np.arange(100_000)), "item", 11)).any()


def test_hashes_stay_what_they_are() -> None:
    """A store that was prepared earlier goes with a log that is prepared later."""
    assert table_key("item") == hash_text(b"item", hash_key())
    assert hash_text(b"", 0) == 0
    assert len({hash_text(b"\0" * length, 1) for length in range(20)}) == 20


def hash_key() -> int:
    from windrow.comm.random import Stream, stream_key

    return stream_key(0, Stream.HASH_VALUES)
