"""windrow.recsys.clustering.runs: rows come back in the order of their ranks, whatever fits into memory."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.recsys.clustering.runs import read_buckets, write_runs


@settings(max_examples=30)
@given(
    st.permutations(list(range(40))),
    st.integers(1, 40),
    st.integers(1, 50),
    st.integers(1, 3000),
    st.integers(1, 40),
)
def test_rows_come_in_the_order_of_their_ranks(
    ranks: list[int], rows: int, bucket_rows: int, run_bytes: int, batch_rows: int
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
        found = list(read_buckets(runs, -(-rows // bucket_rows)))
    assert [batch.num_rows for batch in found[:-1]] == [bucket_rows] * (len(found) - 1)
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
