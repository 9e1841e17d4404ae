"""windrow.recsys.log.clustering.log_files: which files make a log, and what is refused before work starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.log_files import DESCRIPTION_NAME, LogFiles

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})


def write(path: Path, table: pa.Table = TABLE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return path


def test_files_patterns_and_folders(tmp_path: Path) -> None:
    b, a = write(tmp_path / "log" / "b.parquet"), write(tmp_path / "log" / "day=1" / "a.parquet")
    write(tmp_path / "log" / "_temporary" / "c.parquet")
    write(tmp_path / "log" / ".hidden.parquet")
    (tmp_path / "log" / "_SUCCESS").touch()
    other = write(tmp_path / "other.parq")
    assert LogFiles.open([tmp_path / "log"]).files == (b, a)
    assert LogFiles.open([other, tmp_path / "log" / "**" / "[ab].parquet"]).files == (other, b, a)


def test_rows_of_all_files_follow_one_another(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet")
    # Another order of the columns is the same log.
    second = write(tmp_path / "2.parquet", TABLE.select(["b", "a"]))
    empty = write(tmp_path / "3.parquet", TABLE.slice(0, 0))
    log = LogFiles.open([first, second, empty])
    assert log.rows == 6
    assert pa.Table.from_batches(log.batches()) == pa.concat_tables([TABLE, TABLE])
    assert pa.Table.from_batches(log.batches(["b"])).column_names == ["b"]
    assert log.num_bytes == sum(path.stat().st_size for path in (first, second, empty))
    assert 0 < log.row_bytes < 100


def test_the_size_of_a_row_is_that_in_memory(tmp_path: Path) -> None:
    """What Parquet stores in a few bytes, since it repeats, takes its full size in memory."""
    lists = pa.table({"a": [[1] * 1000] * 500})
    log = LogFiles.open([write(tmp_path / "l.parquet", lists)])
    assert log.row_bytes == pytest.approx(8004, rel=0.03)
    assert max(batch.num_rows for batch in log.batches()) <= 4 * 2**20 // 8004


def test_dictionaries_are_read_as_their_values(tmp_path: Path) -> None:
    """A few rows of a row group would take all values of its dictionary along."""
    words = pa.array([f"word {row:05}" for row in range(50_000)]).dictionary_encode()
    log = LogFiles.open([write(tmp_path / "d.parquet", pa.table({"a": words}))])
    assert log.schema.field("a").type == words.type
    assert log.row_bytes == pytest.approx(14, rel=0.03)
    assert {batch.column(0).type for batch in log.batches()} == {pa.string()}
    assert [word for batch in log.batches(["a"]) for word in batch.column(0).to_pylist()] == words.to_pylist()


def test_rows_that_grow_are_seen(tmp_path: Path) -> None:
    lists = pa.table({"a": [[1] * (row // 10) for row in range(1000)]})
    parquet.write_table(lists, tmp_path / "l.parquet", row_group_size=10)
    assert LogFiles.open([tmp_path / "l.parquet"]).row_bytes == pytest.approx(lists.nbytes / 1000, rel=0.2)


def clustered_beside(folder: Path) -> Path:
    write(folder / "log" / "day" / "a.parquet")
    write(folder / "log" / "out" / "part-00000.parquet")
    (folder / "log" / "out" / DESCRIPTION_NAME).touch()
    return folder / "log"


def touched(path: Path, text: str = "") -> Path:
    path.write_text(text)
    return path


OTHER_TYPE = pa.table({"a": [1.5], "b": ["x"]})
TWO_OF_ONE_NAME = pa.table([[1], [2]], names=["a", "a"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda f: [write(f / "1"), write(f / "2", OTHER_TYPE)],
            "2 is unlike .*Field a has incompatible types: .* give all",
        ),
        (lambda f: [write(f / "1"), write(f / "2", TABLE.select(["a"]))], r"unlike .*\(columns a, not a, b\)"),
        (lambda f: [write(f / "1", TABLE.select(["a"])), write(f / "2")], r"unlike .*\(columns a, b, not a\)"),
        (lambda f: [write(f / "1", TWO_OF_ONE_NAME)], "1 is unlike .*duplicate field names"),
        (lambda f: [write(f / "1", TABLE.slice(0, 0))], "there are no rows in the log"),
        (lambda f: [touched(f / "1", "a,b\n1,x\n")], "no readable Parquet file"),
        (lambda f: [touched(f / "1")], "is empty: write it again"),
        (lambda f: [f], r"there is no \*\.parquet in the folder"),
        (lambda f: [f / "*.parquet"], r"\*\.parquet: no file matches; correct the path"),
        (lambda f: [write(f / "1.parquet"), f], "named twice"),
        (lambda f: [clustered_beside(f) / "*" / "*.parquet"], "takes in .*out, .* name that folder itself"),
        (lambda f: [clustered_beside(f)], r"log takes in the clustered log .*out, whose rows would count twice"),
    ],
)
def test_what_is_no_log(tmp_path: Path, make: Callable[[Path], list[Path]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        LogFiles.open(make(tmp_path))


def test_a_clustered_log_that_is_named_is_read(tmp_path: Path) -> None:
    out = clustered_beside(tmp_path) / "out"
    part = out / "part-00000.parquet"
    for named in (out, out / "*.parquet", part):
        assert LogFiles.open([named]).files == (part,)
    (out / DESCRIPTION_NAME).unlink()
    for named in (out.parent, out.parent / "*" / "*.parquet"):
        assert len(LogFiles.open([named]).files) == 2


def test_columns_of_options_are_checked(tmp_path: Path) -> None:
    log = LogFiles.open([write(tmp_path / "1.parquet", TABLE.rename_columns(["session", "time"]))])
    with pytest.raises(DataError, match=r"--by names 'sesion', but there is no such column. Did you mean 'session'"):
        log.check_column("sesion", "--by", "numbers", [pa.types.is_integer])
    log.check_column("session", "--by", "numbers", [pa.types.is_float64, pa.types.is_integer])
    with pytest.raises(DataError, match=r"--by names 'time' of type string, expected numbers: convert the column, or"):
        log.check_column("time", "--by", "numbers", [pa.types.is_float64, pa.types.is_integer])


def test_columns_hold_nulls_where_any_file_has_them(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())], metadata={"k": "v"})
    first = write(tmp_path / "1.parquet", pa.table([[1, 2], ["x", "y"]], schema=strict))
    second = write(tmp_path / "2.parquet", pa.table({"b": ["x", None], "a": [None, 1]}))
    assert LogFiles.open([first]).schema.equals(strict, check_metadata=True)
    log = LogFiles.open([first, second])
    assert log.schema.field("a").nullable
    assert log.schema.metadata == strict.metadata
    assert pa.Table.from_batches(log.batches())["a"].to_pylist() == [1, 2, None, 1]


WORD, SMALL = pa.dictionary(pa.int16(), pa.string()), pa.dictionary(pa.int8(), pa.binary())
RANK = pa.dictionary(pa.int8(), pa.string(), ordered=True)
VIEW = pa.string_view()


@pytest.mark.parametrize(
    ("kind", "of_log", "of_rows", "values"),
    [
        (VIEW, pa.string(), pa.string(), ["a", None]),
        (pa.binary_view(), pa.binary(), pa.binary(), [b"a", None]),
        (pa.list_(VIEW), pa.list_(pa.string()), pa.list_(pa.string()), [["a", None], None]),
        (pa.large_list(VIEW), pa.large_list(pa.string()), pa.large_list(pa.string()), [["a"], None]),
        (pa.list_(VIEW, 1), pa.list_(pa.string(), 1), pa.list_(pa.string(), 1), [["a"], ["b"]]),
        (pa.struct([("x", VIEW)]), pa.struct([("x", pa.string())]), None, [{"x": "a"}, None]),
        (WORD, WORD, pa.string(), ["a", None]),
        (SMALL, SMALL, pa.binary(), [b"a", None]),
        (pa.list_(WORD), pa.list_(WORD), pa.list_(pa.string()), [["a", None], None]),
        (pa.struct([("x", WORD)]), pa.struct([("x", WORD)]), pa.struct([("x", pa.string())]), [{"x": "a"}, None]),
        (RANK, RANK, RANK, ["a", None]),
    ],
    ids=str,
)
def test_rows_can_be_taken_from_every_column(
    tmp_path: Path, kind: Any, of_log: Any, of_rows: Any, values: list[Any]
) -> None:
    """Views give way to text; dictionaries do in rows, and come back."""
    log = LogFiles.open([write(tmp_path / "1.parquet", pa.table({"a": pa.array(values, kind)}))])
    (batch,) = log.batches()
    assert (log.schema.field("a").type, batch.schema.field("a").type) == (of_log, of_rows or of_log)
    assert batch.take(pa.array([1, 0])).column(0).to_pylist() == values[::-1]
    assert batch.cast(log.schema).column(0).to_pylist() == values
