"""windrow.recsys.log.staging: which columns are read as what, and what is checked row by row."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions, split_by_hash
from windrow.recsys.log.raw_blocks import RawBlock
from windrow.recsys.log.staging import StagingWriter, staged_columns, text_types

FEATURES = {
    "campaign": FeatureOptions(column="file"),
    "position": FeatureOptions(ids="rows", rows=3),
    "history": FeatureOptions(multi_hot=True, weights="w"),
}


def log_of(**changes: Any) -> LogOptions:
    settings: dict[str, Any] = {"paths": (Path("a"),), "format": "csv", "features": FEATURES, "time": "t"}
    return LogOptions(**(settings | changes))


def block_of(first: int = 1, **columns: Any) -> RawBlock:
    return RawBlock(
        batch=pa.RecordBatch.from_pydict(columns),
        file=Path("a.csv"),
        columns_in_file=tuple(columns),
        unit="line",
        first=first,
        file_share=1.0,
    )


GOOD = {"label": [0, 1], "t": [5, 6], "position": [0, 2], "history": [["x"], None], "w": [[1.5], None]}


def stage(path: Path, log: LogOptions, split: LogSplitOptions, *blocks: RawBlock) -> StagingWriter:
    with StagingWriter(path, staged_columns(log, split), log, split) as writer:
        for code, block in enumerate(blocks):
            writer.write(block, "some file", code)
    return writer


def test_types_of_text_columns() -> None:
    log = log_of(dense=("price", "position"), session="s")
    types = text_types(staged_columns(log, LogSplitOptions(column="file")))
    assert types == {
        "label": "float64",
        "t": "string",
        "s": "string",
        "file": "string",
        "price": "float64",
        "position": "string",
        "history": "string",
        "w": "string",
    }


def test_rows_are_written_as_they_are_needed(tmp_path: Path) -> None:
    split = LogSplitOptions(by="files")
    blocks = block_of(**GOOD), block_of(**GOOD | {"t": [6, 5]})
    writer = stage(tmp_path / "s.parquet", log_of(), split, *blocks)
    assert (writer.rows, writer.in_time_order) == (4, False)
    rows = parquet.read_table(tmp_path / "s.parquet").to_pylist()
    assert rows[0] == {
        "label": 0.0,
        "time": 5,
        "id.campaign": "some file",
        "id.position": 0,
        "id.history": ["x"],
        "weights.history": [1.5],
        "split": 0,
        "row": 0,
    }
    assert [row["split"] for row in rows] == [0, 0, 1, 1]
    assert [row["row"] for row in rows] == [0, 1, 2, 3]


def test_splits_by_hash_of_the_row_and_of_a_column(tmp_path: Path) -> None:
    for column, keys in (("", [0, 1, 2, 3]), ("t", [5, 6, 5, 6])):
        split = LogSplitOptions(fractions=(0.5, 0.3, 0.2), seed=3, column=column)
        stage(tmp_path / "s.parquet", log_of(), split, block_of(**GOOD), block_of(**GOOD))
        table = parquet.read_table(tmp_path / "s.parquet")
        assert (
            table["split"].to_pylist()
            == split_by_hash(pa.array(keys).to_numpy(), split.fractions, 3).tolist()
        )
        assert "split key" not in table.column_names


def test_a_column_that_a_file_lacks(tmp_path: Path) -> None:
    lacking = {name: values for name, values in GOOD.items() if name not in {"history", "w"}}
    log = log_of(optional=("history", "w"))
    stage(tmp_path / "s.parquet", log, LogSplitOptions(), block_of(**GOOD), block_of(**lacking))
    assert parquet.read_table(tmp_path / "s.parquet")["id.history"].to_pylist() == [["x"], None, None, None]
    with pytest.raises(
        DataError, match=r"a\.csv, line 1: there is no column 'history'; the columns are label, t"
    ):
        stage(tmp_path / "t.parquet", log_of(), LogSplitOptions(), block_of(**lacking))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": [0, 3]}, r"line 8: column 'position' has 3 where ids = \"rows\" expects .* 0 to 2"),
        ({"position": [-1, 0]}, r"line 7: column 'position' has -1"),
        ({"position": [0, None]}, r"line 8: column 'position' has None"),
        ({"w": [[1.5, 2.0], None]}, r"line 7: column 'w' has 2 weights for 1 ids"),
        ({"w": [[1.5], [1.0]]}, r"line 8: column 'w' has 1 weights for 0 ids"),
        ({"history": [[1], None]}, r"line 7: column of 'id.history' holds list<.*int64>, but list<.*string>"),
    ],
)
def test_what_breaks_a_law_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=rf"a\.csv, {words}"):
        stage(tmp_path / "s", log_of(), LogSplitOptions(), block_of(**GOOD), block_of(7, **GOOD | changes))


def test_row_numbers_in_lists_are_checked(tmp_path: Path) -> None:
    log = log_of(features={"f": FeatureOptions(ids="rows", rows=5, multi_hot=True)}, time="")
    block = block_of(label=[0, 0, 0], f=[[1, 2], [], [4, 5]])
    with pytest.raises(DataError, match="line 3: column 'f' has 5 where"):
        stage(tmp_path / "s", log, LogSplitOptions(), block)


def test_times_are_dates_everywhere_or_nowhere(tmp_path: Path) -> None:
    log = log_of()
    dates, numbers = [datetime(2020, 1, 1, tzinfo=UTC)] * 2, [5, 6]
    split = LogSplitOptions(by="time")
    for first, second in ((dates, numbers), (numbers, dates), (["2020-01-01"] * 2, ["5", "6"])):
        blocks = [
            block_of(1 + number, **(GOOD | {"t": times})) for number, times in enumerate((first, second))
        ]
        with pytest.raises(DataError, match=r"line 2: column 't' holds .*, but .* in the rows before"):
            stage(tmp_path / "staged.parquet", log, split, *blocks)
    stage(
        tmp_path / "staged.parquet",
        log,
        split,
        *(block_of(**(GOOD | {"t": times})) for times in (dates, ["2020-01-01"] * 2)),
    )


def test_keys_are_text_everywhere_or_nowhere(tmp_path: Path) -> None:
    """One session is otherwise two: of a text its hash is taken, of a number the number itself."""
    numbers, texts = [5, 6], ["5", "6"]
    encoded = pa.array(texts).dictionary_encode()
    by_session, by_column = (log_of(session="s"), LogSplitOptions()), (log_of(), LogSplitOptions(column="s"))
    for first, second in ((numbers, texts), (texts, numbers), (numbers, encoded)):
        for log, split in (by_session, by_column):
            blocks = [
                block_of(1 + number, **(GOOD | {"s": keys})) for number, keys in enumerate((first, second))
            ]
            with pytest.raises(DataError, match=r"line 2: column 's' holds .*, but .* in the rows before"):
                stage(tmp_path / "staged.parquet", log, split, *blocks)
    for first, second in ((texts, encoded), (numbers, [5.0, 6.0])):
        stage(
            tmp_path / "staged.parquet",
            *by_session,
            *(block_of(**(GOOD | {"s": keys})) for keys in (first, second)),
        )
