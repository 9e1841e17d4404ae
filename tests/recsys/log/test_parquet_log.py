"""windrow.recsys.log.readers: row groups dealt without overlap or loss."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.readers import ParquetLog


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = []
    for number, (rows, group) in enumerate([(10, 3), (1, 1), (25, 7)]):
        paths.append(tmp_path / f"{number}.parquet")
        table = pa.table({"a": range(100 * number, 100 * number + rows), "b": ["x"] * rows})
        parquet.write_table(table, paths[-1], row_group_size=group)
    return paths


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("batch_rows", [2, 1000])
def test_ranks_share_the_rows(files: list[Path], size: int, batch_rows: int) -> None:
    log = ParquetLog(files, ["a", "absent"], batch_rows=batch_rows)
    shares = [
        [value for block in log.batches(rank, size) for value in block.batch.column("a").to_pylist()]
        for rank in range(size)
    ]
    expected = [*range(10), 100, *range(200, 225)]
    assert [value for share in shares for value in share] == expected
    if size <= 3:
        assert all(shares)
    assert log.num_bytes == sum(file.stat().st_size for file in files)


def test_places(files: list[Path]) -> None:
    blocks = list(ParquetLog(files, ["a"], batch_rows=2).batches())
    assert blocks[1].where(0) == f"{files[0]}, row group 0, row 2"
    assert blocks[2].where(1) == f"{files[0]}, row group 1, row 1"
    assert blocks[0].columns_in_file == ("a", "b")


def test_damaged_and_empty_files_are_named(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"text\.parquet: no readable Parquet file"):
        list(ParquetLog([tmp_path / "text.parquet"], ["a"]).batches())
    parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match=r"none\.parquet has no rows"):
        list(ParquetLog([tmp_path / "none.parquet"], ["a"]).batches())
    whole = files[2].read_bytes()
    # The first page; the footer is at the end.
    (tmp_path / "bits.parquet").write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    with pytest.raises(DataError, match=r"bits\.parquet, row group 0, at or after row 0: cannot be read"):
        list(ParquetLog([tmp_path / "bits.parquet"], ["a"]).batches())
