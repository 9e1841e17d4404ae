"""windrow.recsys.log.clustering.log_files: which types order a log, and values that are compared alike."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.log_files import (
    LogFiles,
    check_session_type,
    check_time_type,
    plain_sessions,
    plain_times,
)


def log_of(folder: Path, columns: dict[str, Any]) -> LogFiles:
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    return LogFiles.open([folder / "log.parquet"])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([2**64 - 1, None], pa.uint64()), pa.uint64()),
        (pa.array(["a", None], pa.string_view()), pa.large_string()),
        (pa.array(["a", None]).dictionary_encode(), pa.large_string()),
        (pa.array([b"a", None], pa.binary(1)), pa.large_binary()),
        (pa.array([b"\xff", None]), pa.large_binary()),
    ],
    ids=str,
)
def test_sessions_keep_their_values(column: pa.Array, kind: pa.DataType) -> None:
    plain = plain_sessions(column)
    assert plain.type == kind
    assert plain.to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns", "Europe/Vienna"),
        pa.timestamp("s"),
        pa.time64("ns"),
        pa.time32("ms"),
        pa.date32(),
        pa.date64(),
        pa.uint64(),
        pa.float32(),
        pa.decimal128(9, 2),
    ],
    ids=str,
)
def test_times_are_numbers_whatever_their_unit(kind: pa.DataType) -> None:
    days = [3 * 86_400_000, None, 2 * 86_400_000] if kind == pa.date64() else [3, None, 2]
    plain = plain_times(pa.array(days, kind))
    assert not pa.types.is_temporal(plain.type)
    assert plain.to_pylist() == days


def test_times_and_sessions_without_an_order_are_refused(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        {
            "text": ["a"],
            "list": [[1]],
            "real": [1.5],
            "half": pa.array([1.5], pa.float16()),
            "at": pa.array([1], pa.timestamp("ns", "UTC")),
        },
    )
    check_session_type(log, "text")
    check_time_type(log, "at")
    check_time_type(log, "real")
    for name, kind in (("text", "string"), ("half", "halffloat")):
        with pytest.raises(
            DataError, match=rf"--time names '{name}' of type {kind}, expected numbers, dates or times"
        ):
            check_time_type(log, name)
    for name in ("list", "real", "at"):
        with pytest.raises(DataError, match="expected whole numbers, text or bytes"):
            check_session_type(log, name)
