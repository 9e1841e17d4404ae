"""windrow.recsys.log.raw_blocks: places of rows."""

from pathlib import Path

import pyarrow as pa

from windrow.recsys.log.raw_blocks import RawBlock


def test_places_of_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]})
    text = RawBlock(
        batch=batch, file=Path("a.csv"), columns_in_file=("a",), unit="line", first=7, file_share=1.0
    )
    assert text.where(1) == "a.csv, line 8"
    table = RawBlock(
        batch=batch,
        file=Path("a.parquet"),
        columns_in_file=("a",),
        unit="row group 2, row",
        first=0,
        file_share=1.0,
    )
    assert table.where(0) == "a.parquet, row group 2, row 0"
