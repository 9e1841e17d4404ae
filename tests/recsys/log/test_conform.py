"""windrow.recsys.log.conform: what becomes of each type, and what is refused where."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.comm.errors import DataError
from windrow.recsys.log.conform import Column, ColumnKind, ColumnUse, conform, list_lengths
from windrow.recsys.log.readers import RawBlock


def column(use: ColumnKind, values: Any, kind: pa.DataType | None = None) -> Column:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    block = RawBlock(batch=None, file=Path("a.csv"), columns_in_file=("c",), unit="line", first=10, file_share=1.0)
    return Column(array, ColumnUse("c", "c", use), block)


def conformed(kind: ColumnKind, values: Any, arrow_type: pa.DataType | None = None) -> list[Any]:
    result: list[Any] = conform(column(kind, values, arrow_type)).to_pylist()
    return result


@pytest.mark.parametrize("values", [[0, 1], [0.0, 1.0], [False, True], ["0", "1"], [Decimal(0), Decimal(1)]])
def test_labels(values: list[Any]) -> None:
    assert conformed("label", values) == [0.0, 1.0]


def test_numbers() -> None:
    assert conformed("number", [1.5, None, float("nan")]) == [1.5, None, None]
    assert conformed("number", ["1.5", "", None]) == [1.5, None, None]
    assert conformed("number", [2**40 + 1]) == [2**40 + 1]
    assert conformed("real", [2**40 + 1]) == [float(np.float32(2**40))]
    assert conformed("number", [None, None]) == [None, None]


def test_ids() -> None:
    assert conformed("id", [3, None, -(2**63)]) == [3, None, -(2**63)]
    assert conformed("id", [3.0, None, float("nan")]) == [3, None, None]
    assert conformed("id", [True, False]) == [1, 0]
    assert conformed("id", ["a", "", None]) == ["a", None, None]
    assert conformed("id", pa.array(["a", "b", "a"]).dictionary_encode()) == ["a", "b", "a"]
    assert conformed("id", ["a"], pa.large_string()) == ["a"]
    assert conformed("row", ["7", None]) == [7, None]
    assert conform(column("id", [None])).type == pa.string()


@pytest.mark.parametrize("arrow_type", [pa.list_(pa.int32()), pa.large_list(pa.int64()), None])
def test_lists_of_ids(arrow_type: pa.DataType | None) -> None:
    lists = [[1, 2], [], None, [3]]
    assert conformed("ids", lists, arrow_type) == lists
    sliced = pa.array(lists, arrow_type).slice(1, 3)
    assert conform(column("ids", sliced)).to_pylist() == lists[1:]
    assert list_lengths(conform(column("ids", sliced))).tolist() == [0, 0, 1]


def test_lists_in_text() -> None:
    assert conformed("ids", ["a|b", "", None, "c"]) == [["a", "b"], None, None, ["c"]]
    assert conformed("rows", ["1|20", "3"]) == [[1, 20], [3]]
    assert conformed("weights", ["0.5|2", None]) == [[0.5, 2.0], None]


def test_a_null_list_may_hide_values() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([7, 8, 9]), mask=pa.array([True, False])
    )
    assert conform(column("ids", hidden)).to_pylist() == [None, [9]]


def test_times() -> None:
    instant = datetime(2019, 11, 24, 0, 3, 13, 442536, UTC)
    microseconds = round(instant.timestamp() * 1e6)
    assert conformed("time", ["2019-11-24 00:03:13.442536+00:00"]) == [microseconds]
    assert conformed("time", ["2019-11-24T01:03:13.442536+01:00"]) == [microseconds]
    assert conformed("time", ["2019-11-24 00:03:13.442536"]) == [microseconds]
    assert conformed("time", [instant]) == [microseconds]
    assert conformed("time", [instant.replace(microsecond=0)], pa.timestamp("s")) == [microseconds - 442536]
    assert conformed("time", [date(1970, 1, 2)]) == [86_400_000_000]
    assert conformed("time", [5, -1]) == conformed("time", ["5", "-1"]) == [5, -1]


def test_keys() -> None:
    assert conformed("key", [5, 6]) == [5, 6]
    first, second, third = conformed("key", ["a", "b", "a"])
    assert first == third != second


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("label", [0, 1, 2], r"line 12: column 'c' is 2, expected 0 or 1"),
        ("label", [0, None], r"line 11: column 'c' is empty"),
        ("label", ["0", "yes"], r"line 11: column 'c' has 'yes', expected a number"),
        ("label", [[0]], r"has type list.*expected numbers"),
        ("number", [1.0, float("inf")], r"line 11: column 'c' is inf"),
        ("number", [date(2020, 1, 1)], r"has type date32.*expected numbers"),
        ("id", [1.0, 2.5], r"line 11: column 'c' has 2\.5, expected a whole number"),
        ("id", [date(2020, 1, 1)], r"has type date32.*expected whole numbers or text"),
        ("id", np.array([2**64 - 1], np.uint64), r"line 10: .* 63 bits"),
        ("time", np.array([1, 2**64 - 1], np.uint64), r"line 11: .* 63 bits"),
        ("rows", ["1", "", "1|2|x|y"], r"line 12: column 'c' has 'x', expected a row number"),
        ("weights", ["1|1", "", "1|x"], r"line 12: column 'c' has 'x', expected a number"),
        ("row", ["1", "2", "x", "4"], r"line 12: column 'c' has 'x', expected a row number"),
        ("ids", [1], r"has type int64, expected lists"),
        ("weights", [[1.0], [2.0, float("nan")]], r"line 11: column 'c' is \[2\.0, nan\]: a weight"),
        ("weights", [[1.0], [None]], r"line 11: column 'c' is \[None\]"),
        ("time", ["2020-01-01", None], r"line 11: column 'c' is empty"),
        ("time", ["2020-01-01", "soon"], r"line 11: column 'c' is 'soon': .*ISO date"),
        ("time", ["1", "2020-01-01"], r"line 11: column 'c' is '2020-01-01': .*of one kind"),
        ("time", [1.5], r"has type double, expected whole numbers, dates"),
        ("key", ["a", ""], r"line 11: column 'c' is empty"),
    ],
)
def test_what_does_not_fit_is_refused(kind: ColumnKind, values: Any, words: str) -> None:
    with pytest.raises(DataError, match=rf"a\.csv, .*{words}"):
        conform(column(kind, values))
