"""windrow.recsys.log.store: full row groups, files of some of them, nothing lost."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.partition.manifest import checksum
from windrow.recsys.log.store import SplitWriter


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


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 10))
def test_shards_have_files_of_their_own(
    tmp_path_factory: pytest.TempPathFactory, shards: list[int], batch_rows: int
) -> None:
    folder, total = tmp_path_factory.mktemp("store"), sum(shards)
    with SplitWriter(folder, "train", row_group_rows=4, shard_rows=shards) as writer:
        for start in range(0, total, batch_rows):
            writer.write(pa.RecordBatch.from_pydict({"a": range(start, min(start + batch_rows, total))}))
    files = writer.files()
    assert [file.rows for file in files] == shards
    tables = [parquet.read_table(folder / file.name) for file in files]
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(total))
    for file, rows in zip(files, shards, strict=True):
        metadata = parquet.read_metadata(folder / file.name)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        assert groups == [4] * (rows // 4) + [rows % 4] * (rows % 4 > 0)


def test_lists_of_clustered_samples_are_written_in_full(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"item": [1, 1], "ids": [[1, 2], [1, 2]]})
    found = {}
    for clustered in (False, True):
        with SplitWriter(tmp_path, f"{clustered}", clustered=clustered) as writer:
            writer.write(batch)
        group = parquet.read_metadata(tmp_path / writer.files()[0].name).row_group(0)
        found[clustered] = [group.column(place).has_dictionary_page for place in range(2)]
        assert parquet.read_table(tmp_path / writer.files()[0].name).to_batches() == [batch]
    assert found == {False: [True, True], True: [True, False]}


def test_what_the_sample_before_has_is_left_out_and_a_row_group_begins_anew(tmp_path: Path) -> None:
    columns = {"item": [1, 1, 1, 2, 2], "other": [5] * 5}
    with SplitWriter(tmp_path, "train", row_group_rows=2, repeats=[("item", "")]) as writer:
        writer.write(pa.RecordBatch.from_pydict(columns))
    written = parquet.read_table(tmp_path / writer.files()[0].name)
    assert written["item"].to_pylist() == [1, None, 1, 2, 2]
    assert written["other"].to_pylist() == columns["other"]
