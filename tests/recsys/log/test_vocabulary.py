"""windrow.recsys.log.vocabulary: rows of values, against a dictionary."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.log import vocabulary as module
from windrow.recsys.log.vocabulary import Vocabulary


@given(
    st.lists(st.text(max_size=4), unique=True),
    st.lists(st.text(max_size=4)),
    st.sampled_from([pa.string(), pa.large_string()]),
)
def test_text(values: list[str], asked: list[str], kind: pa.DataType) -> None:
    vocabulary = Vocabulary.of(pa.array(values, kind))
    assert vocabulary.rows == len(values) + 2
    rows = {value: row for row, value in enumerate(values, start=2)}
    wanted = [*asked, *values]
    assert vocabulary.rows_of(pa.array(wanted, pa.string())).tolist() == [
        rows.get(text, 1) for text in wanted
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True), st.lists(st.integers(-5, 5)))
def test_integers(values: list[int], asked: list[int]) -> None:
    vocabulary = Vocabulary.of(pa.array(values, pa.int64()))
    rows = {value: row for row, value in enumerate(values, start=2)}
    wanted = [*asked, *values]
    assert vocabulary.rows_of(pa.array(wanted, pa.int64())).tolist() == [rows.get(v, 1) for v in wanted]


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
