"""windrow.recsys.log.vocabulary: rows of values against a dictionary, hashes against the reference."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.random import GOLDEN, MASK, Stream, hash_ids, mix64, stream_key
from windrow.recsys.log import vocabulary as module
from windrow.recsys.log.vocabulary import Vocabulary, hash_values, hashed_rows, table_key


@pytest.mark.parametrize(
    ("kind", "asked", "value"),
    [
        (pa.string(), pa.string(), st.text(max_size=4)),
        (pa.large_string(), pa.string(), st.text(max_size=4)),
        (pa.int64(), pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)),
    ],
    ids=str,
)
@given(data=st.data())
def test_rows_of_values(kind: pa.DataType, asked: pa.DataType, value: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(value, unique=True))
    wanted = [*data.draw(st.lists(value)), *values]
    vocabulary = Vocabulary.of(pa.array(values, kind))
    assert vocabulary.rows == len(values) + 2
    rows = {value: row for row, value in enumerate(values, start=2)}
    assert vocabulary.rows_of(pa.array(wanted, asked)).tolist() == [rows.get(one, 1) for one in wanted]


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from outside with the hash of one inside is unseen all the same; inside, another key is found."""
    calls = []

    def poor(values: pa.Array, key: int) -> object:
        calls.append(key)
        length = 1 if len(calls) == 1 else 2
        return np.array([int.from_bytes(text[:length].encode()) for text in values.to_pylist()], np.uint64)

    monkeypatch.setattr(module, "hash_values", poor)
    vocabulary = Vocabulary.of(pa.array(["aa", "ab"]))
    assert len(set(calls)) == 2
    assert vocabulary.rows_of(pa.array(["ab", "ab!", "aa", "b"])).tolist() == [3, 1, 2, 1]


def hash_text(text: bytes, key: int) -> int:
    state = mix64(key ^ len(text))
    for start in range(0, len(text), 8):
        word = int.from_bytes(text[start : start + 8], "little")
        state = mix64(state ^ mix64((word + GOLDEN) & MASK))
    return state


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


def test_hashed_rows_spread_over_all_rows_but_that_of_missing_values() -> None:
    rows = hashed_rows(pa.array(np.arange(100_000)), "user", 11)
    counts = np.bincount(rows, minlength=11)
    assert counts[0] == 0
    assert counts[1:].min() > 9_500
    assert (rows != hashed_rows(pa.array(np.arange(100_000)), "item", 11)).any()


def test_hashes_stay_what_they_are() -> None:
    """A store that was prepared earlier goes with a log that is prepared later."""
    assert table_key("item") == hash_text(b"item", stream_key(0, Stream.HASH_VALUES))
    assert hash_text(b"", 0) == 0
    assert len({hash_text(b"\0" * length, 1) for length in range(20)}) == 20
