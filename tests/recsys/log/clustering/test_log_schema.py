"""windrow.recsys.log.clustering.log_files: files that differ in what Parquet does not tell are one log."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.log_files import (
    as_schema,
    check_alike,
    common_schema,
    without_dictionaries,
)

STRICT = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())], metadata={"k": "v"})
LOOSE = pa.schema([("b", pa.string()), ("a", pa.int64())])


def test_columns_hold_nulls_where_any_file_has_them() -> None:
    check_alike(Path("2"), LOOSE, Path("1"), STRICT)
    for others in ([LOOSE], [STRICT, LOOSE]):
        found = common_schema(STRICT, others)
        assert found.names == ["a", "b"]
        assert found.field("a").nullable
        assert found.metadata == STRICT.metadata
    assert common_schema(STRICT, [STRICT]) == STRICT
    rows = as_schema(
        pa.record_batch([[1, None], ["x", None]], names=["a", "b"]), common_schema(STRICT, [LOOSE])
    )
    assert rows.column(0).to_pylist() == [1, None]


@pytest.mark.parametrize(
    ("kind", "wanted", "values"),
    [
        (pa.string_view(), pa.string(), ["a", None]),
        (pa.binary_view(), pa.binary(), [b"a", None]),
        (pa.list_(pa.string_view()), pa.list_(pa.string()), [["a", None], None, []]),
        (pa.large_list(pa.string_view()), pa.large_list(pa.string()), [["a"], None]),
        (pa.list_(pa.string_view(), 1), pa.list_(pa.string(), 1), [["a"], ["b"]]),
        (pa.struct([("x", pa.string_view())]), pa.struct([("x", pa.string())]), [{"x": "a"}, None]),
        (pa.map_(pa.string_view(), pa.int64()), pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
        (pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int8(), pa.int64()), [1, None]),
    ],
    ids=str,
)
def test_rows_can_be_taken_from_every_column(kind: Any, wanted: Any, values: list[Any]) -> None:
    schema = common_schema(pa.schema([("a", kind)]), [])
    assert schema.field("a").type == wanted
    batch = as_schema(pa.record_batch([pa.array(values, kind)], names=["a"]), schema)
    assert batch.schema == schema
    assert batch.take(pa.array([1, 0])).column(0).to_pylist() == [values[1], values[0]]


WORD = pa.dictionary(pa.int16(), pa.string())
RANK = pa.dictionary(pa.int8(), pa.string(), ordered=True)


@pytest.mark.parametrize(
    ("kind", "wanted", "values"),
    [
        (WORD, pa.string(), ["a", None]),
        (pa.dictionary(pa.int8(), pa.binary()), pa.binary(), [b"a", None]),
        (pa.list_(WORD), pa.list_(pa.string()), [["a", None], None]),
        (pa.struct([("x", WORD)]), pa.struct([("x", pa.string())]), [{"x": "a"}, None]),
        (pa.map_(pa.string(), WORD), pa.map_(pa.string(), pa.string()), [[("a", "b")], None]),
        (RANK, RANK, ["a", None]),
    ],
    ids=str,
)
def test_dictionaries_give_way_and_come_back(kind: Any, wanted: Any, values: list[Any]) -> None:
    stored = pa.schema([pa.field("a", kind)], metadata={"k": "v"})
    moved = without_dictionaries(stored)
    assert moved.equals(pa.schema([("a", wanted)], metadata={"k": "v"}), check_metadata=True)
    batch = as_schema(pa.record_batch([pa.array(values, kind)], schema=stored), moved)
    assert batch.column(0).to_pylist() == values
    assert as_schema(batch, stored).column(0).to_pylist() == values


def test_a_column_that_differs_is_named() -> None:
    with pytest.raises(DataError, match="2 and 1 differ in column 'a': double and int64"):
        check_alike(Path("2"), pa.schema([("a", pa.float64()), ("b", pa.string())]), Path("1"), STRICT)
    with pytest.raises(DataError, match="there is none"):
        check_alike(Path("2"), pa.schema([("a", pa.int64())]), Path("1"), STRICT)
    with pytest.raises(DataError, match="two columns of one name: a, a"):
        check_alike(Path("2"), pa.schema([("a", pa.int64())] * 2), Path("1"), STRICT)
