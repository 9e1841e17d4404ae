"""windrow.recsys.log.shard_writer: row groups hold whole sessions, files whole shards."""

import itertools
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.recsys.log.shard_writer import ShardWriter

SHARDS = st.lists(st.lists(st.integers(1, 7), max_size=8), min_size=1, max_size=3)


def expected_groups(sizes: list[int], most: int) -> list[int]:
    """Greedily whole sessions; one that is too large alone, in full groups, its rest with those that follow."""
    groups, filled = [], 0
    for size in sizes:
        left = size
        if filled and filled + left > most:
            groups.append(filled)
            filled = 0
        while filled + left > most:
            groups.append(most)
            left -= most
        filled += left
    return groups + [filled] * (filled > 0)


@settings(max_examples=60)
@given(SHARDS, st.integers(1, 10), st.integers(1, 12), st.booleans())
def test_row_groups_hold_whole_sessions(shards: list[list[int]], most: int, batch_rows: int, by_session: bool) -> None:
    """Without sessions they are full: each row may begin a group."""
    sessions = [number for number, size in enumerate(itertools.chain(*shards)) for _ in range(size)]
    table = pa.table({"s": pa.array(sessions, pa.int64()), "row": list(range(len(sessions)))})
    with tempfile.TemporaryDirectory() as name:
        writer = ShardWriter(
            Path(name), shard_rows=[sum(shard) for shard in shards], row_group_rows=most, by="s" if by_session else ""
        )
        with writer:
            for start in range(0, len(sessions), batch_rows):
                for batch in table.slice(start, batch_rows).to_batches():
                    writer.write(batch)
        full = [shard for shard in shards if shard]
        names = [(f"part-{number:05}.parquet", sum(shard)) for number, shard in enumerate(shards) if shard]
        assert [(path.name, rows) for path, rows in writer.written] == names
        found, total = [], 0
        for (path, _), shard in zip(writer.written, full, strict=True):
            metadata = parquet.read_metadata(path)
            groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            assert groups == expected_groups(shard if by_session else [1] * sum(shard), most)
            total += len(groups)
            found.append(parquet.read_table(path))
        if found:
            assert pa.concat_tables(found) == table
        assert writer.row_groups == total


@pytest.mark.parametrize(
    ("sessions", "groups"),
    [
        (pa.array(["a", "a", "a", "b"]), [3, 1]),
        (pa.array([None, None, 1, 1, None]), [2, 3]),
        (pa.array([b"x", b"y", b"y", b"y"], pa.binary(1)), [1, 3]),
    ],
)
def test_sessions_begin_where_a_value_differs(tmp_path: Path, sessions: pa.Array, groups: list[int]) -> None:
    """Each null is a session of its own."""
    table = pa.table({"s": sessions})
    with ShardWriter(tmp_path, shard_rows=[len(sessions)], row_group_rows=3, by="s") as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write(batch)
    metadata = parquet.read_metadata(writer.written[0][0])
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == groups
