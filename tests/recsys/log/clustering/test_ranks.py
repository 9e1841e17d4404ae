"""windrow.recsys.log.clustering.external_sort: DuckDB's order against a sort in Python."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.log.clustering.external_sort import Ranks, open_ranks, rank_rows, write_ranks
from windrow.recsys.log.clustering.log_files import LogFiles

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "é", "", None]), st.integers(0, 3) | st.none()),
    min_size=1,
    max_size=40,
)
MEMORY_BYTES = 256 << 20


def hash_of(session: str | None, row: int) -> int:
    text = f"row {row}" if session is None else session
    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little")


def log_of(folder: Path, columns: dict[str, Any]) -> LogFiles:
    parquet.write_table(pa.table(columns), folder / "it's.parquet")
    return LogFiles.open([folder / "it's.parquet"])


def ranks_of(log: LogFiles, work: Path, **changes: Any) -> Ranks:
    """Rank the rows of a log: sessions and times are one column, sorted, in one shard, but for changes."""
    options = {"by": "s", "time": "s", "sort": True, "shards": 1, "advance": lambda share: None, **changes}
    return rank_rows(log, work=work, memory_bytes=MEMORY_BYTES, **options)


@settings(max_examples=25)
@given(ROWS, st.integers(1, 3), st.booleans())
def test_ranks_are_those_of_a_sort(
    rows: list[tuple[str | None, int | None]], shards: int, sort: bool
) -> None:
    sessions, times = (list(part) for part in zip(*rows, strict=True))

    def key(row: int) -> tuple[Any, ...]:
        hashed, time = hash_of(sessions[row], row), times[row]
        within = (hashed, sessions[row] or "", time is None, time or 0) if sort else ()
        return (hashed % shards, *within, row)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = {"s": pa.array(sessions, pa.string()), "t": pa.array(times, pa.int16())}
        told: list[float] = []
        ranks = ranks_of(
            log_of(folder, columns), folder, time="t", sort=sort, shards=shards, advance=told.append
        )
        ordered = sorted(range(len(rows)), key=key)
        assert np.argsort(ranks.open()).tolist() == ordered
        assert sorted(ranks.open().tolist()) == list(range(len(rows)))
        dealt = [hash_of(session, row) % shards for row, session in enumerate(sessions)]
        assert ranks.shard_rows == tuple(dealt.count(shard) for shard in range(shards))
        assert ranks.sessions == len({hash_of(session, row) for row, session in enumerate(sessions)})
        assert told[-1] == 1.0
        assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["it's.parquet", "ranks"]


@pytest.mark.parametrize(
    "sessions",
    [
        pa.array([7, 3, 7], pa.int8()),
        pa.array([2**64 - 1, 1, 2**64 - 1], pa.uint64()),
        pa.array(["x", "y", "x"], pa.string_view()),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array([b"\xff", b"y", b"\xff"]),
        pa.array([b"a", b"y", b"a"], pa.binary(1)),
    ],
    ids=lambda array: str(array.type),
)
def test_sessions_of_any_type(tmp_path: Path, sessions: pa.Array) -> None:
    log = log_of(tmp_path, {"s": sessions})
    ranks = ranks_of(log, tmp_path, sort=False, shards=1000)
    assert ranks.sessions == 2
    assert sorted(ranks.shard_rows)[-2:] == [1, 2]


@pytest.mark.parametrize("kind", [pa.timestamp("ns", "UTC"), pa.time64("ns")], ids=str)
def test_nanoseconds_order_rows(tmp_path: Path, kind: pa.DataType) -> None:
    log = log_of(tmp_path, {"s": ["a", "a", "a"], "t": pa.array([7, 9, 8], kind)})
    ranks = ranks_of(log, tmp_path, time="t")
    assert ranks.open().tolist() == [0, 2, 1]


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"DuckDB could not write .*: make room on the disk of the output, or"
    ):
        ranks_of(log_of(tmp_path, {"s": [1]}), tmp_path / "nowhere")


def test_an_order_is_turned_round(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"row": [2, 0, 3, 1]}), tmp_path / "order.parquet")
    ranks = write_ranks(duckdb.connect(), tmp_path / "order.parquet", tmp_path)
    assert open_ranks(ranks).tolist() == [1, 3, 0, 2]


def test_memory_that_is_not_enough_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.recsys.log.clustering.external_sort.DUCKDB_SHARE", 0.002)
    with pytest.raises(
        DataError, match=r"DuckDB could not order 200000 rows within \d+ bytes: raise --memory"
    ):
        ranks_of(log_of(tmp_path, {"s": np.arange(200_000)}), tmp_path)
