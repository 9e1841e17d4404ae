"""windrow.recsys.store_writer: full row groups, files of some of them, nothing lost."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.partition.manifest import checksum
from windrow.recsys.store_writer import SplitWriter


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=12))
def test_row_groups_are_full(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    folder = tmp_path_factory.mktemp("store")
    total = sum(lengths)
    with SplitWriter(folder, "train", row_group_rows=4, file_rows=12) as writer:
        start = 0
        for length in lengths:
            writer.write(pa.RecordBatch.from_pydict({"a": range(start, start + length)}))
            start += length
    files = writer.files()
    assert [file.rows for file in files] == [12] * (total // 12) + [total % 12] * (total % 12 > 0)
    values = []
    for number, file in enumerate(files):
        assert file.name == f"train/part-{number:05d}.parquet"
        path = folder / file.name
        assert (file.num_bytes, file.sha256) == (path.stat().st_size, checksum(path))
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        assert groups == [4] * (file.rows // 4) + [file.rows % 4] * (file.rows % 4 > 0)
        values += parquet.read_table(path)["a"].to_pylist()
    assert values == list(range(total))


def test_an_error_leaves_no_open_file(tmp_path: Path) -> None:
    def broken() -> None:
        with SplitWriter(tmp_path, "test", row_group_rows=2) as writer:
            writer.write(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}))
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert parquet.read_table(tmp_path / "test" / "part-00000.parquet")["a"].to_pylist() == [1, 2]
