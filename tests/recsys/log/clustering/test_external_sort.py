"""windrow.recsys.log.clustering.external_sort: the order of rows against Python, and rows in it, whatever fits."""

import hashlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.log.clustering.external_sort import Ranks, rank_rows, sort_rows
from windrow.recsys.log.clustering.log_files import LogFiles

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "é", "", None]), st.integers(0, 3) | st.none()), min_size=1, max_size=40
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
def test_ranks_are_those_of_a_sort(rows: list[tuple[str | None, int | None]], shards: int, sort: bool) -> None:
    sessions, times = (list(part) for part in zip(*rows, strict=True))

    def key(row: int) -> tuple[Any, ...]:
        hashed, time = hash_of(sessions[row], row), times[row]
        within = (hashed, sessions[row] or "", time is None, time or 0) if sort else ()
        return (hashed % shards, *within, row)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        columns = {"s": pa.array(sessions, pa.string()), "t": pa.array(times, pa.int16())}
        told: list[float] = []
        ranks = ranks_of(log_of(folder, columns), folder, time="t", sort=sort, shards=shards, advance=told.append)
        ordered = sorted(range(len(rows)), key=key)
        assert np.argsort(ranks.ranks).tolist() == ordered
        assert sorted(ranks.ranks.tolist()) == list(range(len(rows)))
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


TIMES = (
    pa.timestamp("ns", "Europe/Vienna"),
    pa.timestamp("s"),
    pa.time64("ns"),
    pa.time32("ms"),
    pa.date32(),
    pa.date64(),
    pa.uint64(),
    pa.float32(),
    pa.decimal128(9, 2),
)


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_times_of_any_type_and_unit_order_rows(tmp_path: Path, kind: pa.DataType) -> None:
    unit = 86_400_000 if kind == pa.date64() else 1
    times = pa.array([7 * unit, None, 9 * unit, 8 * unit], kind)
    ranks = ranks_of(log_of(tmp_path, {"s": ["a"] * 4, "t": times}), tmp_path, time="t")
    assert ranks.ranks.tolist() == [0, 3, 2, 1]


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"DuckDB could not write .*: make room on the disk of the output, or"):
        ranks_of(log_of(tmp_path, {"s": [1]}), tmp_path / "nowhere")


def test_memory_that_is_not_enough_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.recsys.log.clustering.external_sort.DUCKDB_SHARE", 0.002)
    with pytest.raises(DataError, match=r"DuckDB could not order 200000 rows within \d+ bytes: raise --memory"):
        ranks_of(log_of(tmp_path, {"s": np.arange(200_000)}), tmp_path)


@settings(max_examples=30)
@given(
    st.permutations(list(range(40))),
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(1, 3000),
    st.integers(1, 40),
    st.integers(0, 2000),
)
def test_rows_come_in_the_order_of_their_ranks(
    ranks: list[int], rows: int, bucket_rows: int, run_bytes: int, batch_rows: int, bucket_bytes: int
) -> None:
    kept = np.argsort(np.argsort(ranks[:rows]))  # A permutation of 0 to rows - 1.
    table = pa.table({"number": list(range(rows)), "rank": [[int(rank)] * (rank % 3) for rank in kept]})
    # A batch has a dictionary of its own, as those of another row group or file have.
    batches = [
        batch.append_column("word", pa.array([f"w{row}" for row in batch["number"].to_pylist()]).dictionary_encode())
        for batch in table.to_batches(max_chunksize=batch_rows)
    ]
    told: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        found = list(
            sort_rows(
                batches,
                kept,
                bucket_rows=bucket_rows,
                run_bytes=run_bytes,
                folder=Path(name),
                bucket_bytes=bucket_bytes,
                advance=told.append,
            )
        )
        assert len(list(Path(name).iterdir())) == len(told)
    assert told[-1] == rows
    ends = list(itertools.accumulate(batch.num_rows for batch in found))
    assert set(ends) >= {*range(bucket_rows, rows, bucket_rows), rows}
    assert all(batch.num_rows == 1 or batch.nbytes <= bucket_bytes for batch in found)
    merged = [row for batch in found for row in batch.to_pylist()]
    order = np.argsort(kept).tolist()
    assert [row["number"] for row in merged] == order
    assert [row["word"] for row in merged] == [f"w{row}" for row in order]
    assert [row["rank"] for row in merged] == [[rank] * (rank % 3) for rank in range(rows)]


@pytest.mark.parametrize(
    ("batch_rows", "run_bytes", "expected"),
    [([100] * 6, 1600, [200, 400, 600]), ([10, 90, 20, 0, 300, 5], 800, [100, 120, 420, 425])],
)
def test_a_run_takes_as_many_batches_as_are_allowed(
    tmp_path: Path, batch_rows: list[int], run_bytes: int, expected: list[int]
) -> None:
    batches = [pa.record_batch({"a": pa.array(range(rows), pa.int64())}) for rows in batch_rows]
    told: list[int] = []
    ranks = np.arange(sum(batch_rows))
    found = sort_rows(batches, ranks, bucket_rows=100, run_bytes=run_bytes, folder=tmp_path, advance=told.append)
    assert sum(batch.num_rows for batch in found) == len(ranks)
    assert told == expected


def test_heavy_rows_are_read_in_parts(tmp_path: Path) -> None:
    """A few rows hold nearly all there is, and stand together."""
    lists = [[7] * (1000 if row % 100 < 10 else 0) for row in range(1000)]
    table = pa.table({"row": range(1000), "ids": lists})
    ranks = np.argsort(np.argsort([row % 100 for row in range(1000)], kind="stable"), kind="stable")
    options = {"bucket_rows": 500, "run_bytes": 200_000, "folder": tmp_path}
    whole, parts = (
        list(sort_rows(table.to_batches(max_chunksize=100), ranks, **options, **bucket))
        for bucket in ({}, {"bucket_bytes": 50_000})
    )
    assert max(part.nbytes for part in parts) <= 50_000
    assert len(parts) < 60
    assert pa.Table.from_batches(parts) == pa.Table.from_batches(whole)
    assert pa.Table.from_batches(whole)["ids"].to_pylist() == [lists[row] for row in np.argsort(ranks)]


def test_what_arrow_cannot_hold_is_told(tmp_path: Path) -> None:
    """Lists of nulls take no bytes, but their positions are numbers of 32 bits."""
    lists = pa.ListArray.from_arrays(pa.array([0, 3 << 29], pa.int32()), pa.nulls(3 << 29))
    batches = [pa.record_batch({"a": lists})] * 2
    with pytest.raises(DataError, match=r"2 rows of the log do not fit into Arrow's arrays .*: lower --memory"):
        list(sort_rows(batches, np.arange(2), bucket_rows=2, run_bytes=1 << 20, folder=tmp_path))
