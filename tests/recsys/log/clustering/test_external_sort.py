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

from windrow.recsys.log.clustering import external_sort
from windrow.recsys.log.clustering.external_sort import rank_sessions, sort_rows
from windrow.recsys.log.duckdb_sql import open_database, sql_text

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "é", "", None]), st.integers(0, 3) | st.none()), min_size=1, max_size=40
)


def hash_of(session: str | None, row: int) -> int:
    text = f"row {row}" if session is None else session
    return int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little")


@settings(max_examples=25)
@given(ROWS, st.integers(1, 3), st.booleans())
def test_ranks_are_those_of_a_sort(rows: list[tuple[str | None, int | None]], shards: int, cluster: bool) -> None:
    sessions, times = (list(part) for part in zip(*rows, strict=True))

    def key(row: int) -> tuple[Any, ...]:
        hashed, time = hash_of(sessions[row], row), times[row]
        within = (hashed, sessions[row] or "") if cluster else ()
        return (hashed % shards, *within, time is None, time or 0, row)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "it's.parquet"
        columns = {"session": pa.array(sessions, pa.string()), "time": pa.array(times, pa.int16())}
        parquet.write_table(pa.table(columns), path)
        query = (
            f"SELECT *, file_row_number AS row, 7 AS split, {shards} AS shards "
            f"FROM read_parquet({sql_text(path)}, file_row_number = true)"
        )
        with open_database("256MB", folder / "duckdb") as database:
            ranks, counts = rank_sessions(database, query, folder, cluster=cluster)
        ordered = sorted(range(len(rows)), key=key)
        assert np.argsort(ranks).tolist() == ordered
        assert sorted(ranks.tolist()) == list(range(len(rows)))
        dealt = [hash_of(session, row) % shards for row, session in enumerate(sessions)]
        assert counts == {(7, shard): dealt.count(shard) for shard in sorted(set(dealt))}
        assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["it's.parquet", "ranks"]


@settings(max_examples=30)
@given(
    st.permutations(list(range(40))), st.integers(1, 40), st.integers(1, 50), st.integers(1, 3000), st.integers(1, 40)
)
def test_rows_come_in_the_order_of_their_ranks(
    ranks: list[int], rows: int, bucket_rows: int, run_bytes: int, batch_rows: int
) -> None:
    kept = np.argsort(np.argsort(ranks[:rows]))  # A permutation of 0 to rows - 1.
    table = pa.table({"number": list(range(rows)), "rank": [[int(rank)] * (rank % 3) for rank in kept]})
    # A batch has a dictionary of its own, as those of another row group or file have.
    batches = [
        batch.append_column("word", pa.array([f"w{row}" for row in batch["number"].to_pylist()]).dictionary_encode())
        for batch in table.to_batches(max_chunksize=batch_rows)
    ]
    told: list[int] = []
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "RUN_SHARE", 1.0)
        patch.setattr(external_sort, "BUCKET_SHARE", 1.0)
        options: Any = {"row_bytes": run_bytes / (bucket_rows + 0.5), "memory_bytes": run_bytes, "folder": Path(name)}
        found = list(sort_rows(batches, kept, **options, advance=told.append))
        assert len(list(Path(name).iterdir())) == len(told)
    assert told[-1] == rows
    ends = list(itertools.accumulate(batch.num_rows for batch in found))
    assert set(ends) >= {*range(bucket_rows, rows, bucket_rows), rows}
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: list[int], run_bytes: int, expected: list[int]
) -> None:
    monkeypatch.setattr(external_sort, "RUN_SHARE", 1.0)
    batches = [pa.record_batch({"a": pa.array(range(rows), pa.int64())}) for rows in batch_rows]
    told: list[int] = []
    ranks = np.arange(sum(batch_rows))
    found = sort_rows(batches, ranks, row_bytes=8, memory_bytes=run_bytes, folder=tmp_path, advance=told.append)
    assert sum(batch.num_rows for batch in found) == len(ranks)
    assert told == expected
