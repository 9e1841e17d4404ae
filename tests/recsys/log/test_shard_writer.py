"""windrow.recsys.log.shard_writer: row groups are full, files hold whole shards."""

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.recsys.log.shard_writer import ShardWriter


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 10), st.integers(1, 12))
def test_row_groups_are_full_and_files_hold_shards(shards: list[int], most: int, batch_rows: int) -> None:
    table = pa.table({"row": pa.array(range(sum(shards)), pa.int64())})
    with tempfile.TemporaryDirectory() as name:
        with ShardWriter(Path(name), shard_rows=shards, row_group_rows=most) as writer:
            for batch in table.to_batches(max_chunksize=batch_rows):
                writer.write(batch)
        names = [(f"part-{number:05}.parquet", rows) for number, rows in enumerate(shards) if rows]
        assert [(path.name, rows) for path, rows in writer.written] == names
        found, total = [], 0
        for path, rows in writer.written:
            metadata = parquet.read_metadata(path)
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            assert groups == [most] * (rows // most) + [rows % most] * (rows % most > 0)
            total += len(groups)
            found.append(parquet.read_table(path))
        if found:
            assert pa.concat_tables(found) == table
        assert writer.row_groups == total
