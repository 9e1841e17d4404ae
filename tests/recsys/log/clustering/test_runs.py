"""Rows come back in the order of their ranks, whatever fits into memory."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.external_sort import read_buckets, write_runs


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
    ranks: list[int], rows: int, bucket_rows: int, run_bytes: int, batch_rows: int, most_bytes: int
) -> None:
    kept = np.argsort(np.argsort(ranks[:rows]))  # A permutation of 0 to rows - 1.
    # A batch has a dictionary of its own, as those of another row group or file have.
    table = pa.table({"number": list(range(rows)), "rank": [[int(rank)] * (rank % 3) for rank in kept]})
    words = [pa.array([f"w{row}" for row in range(start, min(start + batch_rows, rows))]).dictionary_encode()
             for start in range(0, rows, batch_rows)]  # fmt: skip
    batches = [
        pa.RecordBatch.from_pydict(
            {
                name: table.column(name).slice(place * batch_rows, batch_rows).combine_chunks()
                for name in table.column_names
            }
            | {"word": array}
        )
        for place, array in enumerate(words)
    ]
    with tempfile.TemporaryDirectory() as name:
        written = list(
            write_runs(batches, kept, bucket_rows=bucket_rows, run_bytes=run_bytes, folder=Path(name))
        )
        runs = [path for path, _ in written]
        assert written[-1][1] == rows
        assert len(set(runs)) == len(runs)
        found = list(read_buckets(runs, -(-rows // bucket_rows), most_bytes))
    ends = list(itertools.accumulate(batch.num_rows for batch in found))
    assert set(ends) >= {*range(bucket_rows, rows, bucket_rows), rows}
    assert all(batch.num_rows == 1 or batch.nbytes <= most_bytes for batch in found)
    merged = [row for batch in found for row in batch.to_pylist()]
    order = np.argsort(kept).tolist()
    assert [row["number"] for row in merged] == order
    assert [row["word"] for row in merged] == [f"w{row}" for row in order]
    assert [row["rank"] for row in merged] == [[rank] * (rank % 3) for rank in range(rows)]


def test_a_block_is_as_large_as_is_allowed(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array(range(100), pa.int64())})
    written = list(write_runs([batch] * 6, np.arange(600), bucket_rows=100, run_bytes=1600, folder=tmp_path))
    assert [rows for _, rows in written] == [200, 400, 600]
    assert pytest.approx(600) == sum(
        found.num_rows for found in read_buckets([path for path, _ in written], 6)
    )


def test_heavy_rows_are_read_in_parts(tmp_path: Path) -> None:
    """A few rows hold nearly all there is, and stand together."""
    lists = [[7] * (1000 if row % 100 < 10 else 0) for row in range(1000)]
    table = pa.table({"row": range(1000), "ids": lists})
    ranks = np.argsort(np.argsort([row % 100 for row in range(1000)], kind="stable"), kind="stable")
    written = write_runs(
        table.to_batches(max_chunksize=100), ranks, bucket_rows=500, run_bytes=200_000, folder=tmp_path
    )
    runs = [path for path, _ in written]
    whole = pa.Table.from_batches(read_buckets(runs, 2))
    parts = list(read_buckets(runs, 2, 50_000))
    assert max(part.nbytes for part in parts) <= 50_000
    assert len(parts) < 60
    assert pa.Table.from_batches(parts) == whole
    assert whole["ids"].to_pylist() == [lists[row] for row in np.argsort(ranks)]


def test_a_block_takes_no_batch_that_would_be_too_much(tmp_path: Path) -> None:
    batches = [pa.record_batch({"a": pa.array(range(rows), pa.int64())}) for rows in (10, 90, 20, 0, 300, 5)]
    written = write_runs(batches, np.arange(425), bucket_rows=100, run_bytes=800, folder=tmp_path)
    assert [rows for _, rows in written] == [100, 120, 420, 425]


def test_what_arrow_cannot_hold_is_told(tmp_path: Path) -> None:
    """Lists of nulls take no bytes, but their positions are numbers of 32 bits."""
    lists = pa.ListArray.from_arrays(pa.array([0, 3 << 29], pa.int32()), pa.nulls(3 << 29))
    batches = [pa.record_batch({"a": lists})] * 2
    with pytest.raises(
        DataError, match=r"2 rows of the log do not fit into Arrow's arrays .*: lower --memory"
    ):
        list(write_runs(batches, np.arange(2), bucket_rows=2, run_bytes=1 << 20, folder=tmp_path))
