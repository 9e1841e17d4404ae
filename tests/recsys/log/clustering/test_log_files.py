"""windrow.recsys.log.clustering.log_files: which files make a log, and what is refused before work starts."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.log_files import DESCRIPTION_NAME, LogFiles, find_files, is_utf8

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
    assert find_files([tmp_path / "log"]) == (b, a)
    assert find_files([other, tmp_path / "log" / "**" / "[ab].parquet"]) == (other, b, a)


def test_rows_of_all_files_follow_one_another(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet")
    # Another order of the columns is the same log.
    second = write(tmp_path / "2.parquet", TABLE.select(["b", "a"]))
    empty = write(tmp_path / "3.parquet", TABLE.slice(0, 0))
    log = LogFiles.open([first, second, empty])
    assert (log.rows, log.file_rows) == (6, (3, 3, 0))
    assert pa.Table.from_batches(log.batches()) == pa.concat_tables([TABLE, TABLE])
    assert pa.Table.from_batches(log.batches(["b"])).column_names == ["b"]
    assert log.num_bytes == sum(path.stat().st_size for path in (first, second, empty))
    assert 0 < log.row_bytes < 100


def test_the_size_of_a_row_is_that_in_memory(tmp_path: Path) -> None:
    """What Parquet stores in a few bytes, since it repeats, takes its full size in memory."""
    lists = pa.table({"a": [[1] * 1000] * 500})
    log = LogFiles.open([write(tmp_path / "l.parquet", lists)])
    assert log.row_bytes == pytest.approx(8004, rel=0.03)
    assert log.packed_row_bytes < 800
    assert max(batch.num_rows for batch in log.batches()) <= 4 * 2**20 // 8004


def test_dictionaries_are_read_as_their_values(tmp_path: Path) -> None:
    """A few rows of a row group would take all values of its dictionary along."""
    words = pa.array([f"word {row:05}" for row in range(50_000)]).dictionary_encode()
    log = LogFiles.open([write(tmp_path / "d.parquet", pa.table({"a": words}))])
    assert log.schema.field("a").type == words.type
    assert log.row_bytes == pytest.approx(14, rel=0.03)
    assert log.packed_row_bytes < 14
    assert {batch.column(0).type for batch in log.batches()} == {pa.string()}
    assert [word for batch in log.batches(["a"]) for word in batch.column(0).to_pylist()] == words.to_pylist()


def test_rows_that_grow_are_seen(tmp_path: Path) -> None:
    lists = pa.table({"a": [[1] * (row // 10) for row in range(1000)]})
    parquet.write_table(lists, tmp_path / "l.parquet", row_group_size=10)
    assert LogFiles.open([tmp_path / "l.parquet"]).row_bytes == pytest.approx(lists.nbytes / 1000, rel=0.2)


def two_types(folder: Path) -> list[Path]:
    return [write(folder / "1.parquet"), write(folder / "2.parquet", pa.table({"a": [1.5], "b": ["x"]}))]


def one_column_less(folder: Path) -> list[Path]:
    return [write(folder / "1.parquet"), write(folder / "2.parquet", TABLE.select(["a"]))]


def one_column_more(folder: Path) -> list[Path]:
    return [write(folder / "1.parquet", TABLE.select(["a"])), write(folder / "2.parquet")]


def no_rows(folder: Path) -> list[Path]:
    return [write(folder / "1.parquet", TABLE.slice(0, 0))]


def no_parquet(folder: Path) -> list[Path]:
    (folder / "1.parquet").write_text("a,b\n1,x\n")
    return [folder / "1.parquet"]


def nothing_in_it(folder: Path) -> list[Path]:
    (folder / "1.parquet").touch()
    return [folder / "1.parquet"]


def no_files(folder: Path) -> list[Path]:
    return [folder]


def no_match(folder: Path) -> list[Path]:
    return [folder / "*.parquet"]


def twice(folder: Path) -> list[Path]:
    return [write(folder / "1.parquet"), folder]


def clustered_beside(folder: Path) -> Path:
    write(folder / "log" / "day" / "a.parquet")
    write(folder / "log" / "out" / "part-00000.parquet")
    (folder / "log" / "out" / DESCRIPTION_NAME).touch()
    return folder / "log"


def clustered_in_a_pattern(folder: Path) -> list[Path]:
    return [clustered_beside(folder) / "*" / "*.parquet"]


def clustered_in_a_folder(folder: Path) -> list[Path]:
    return [clustered_beside(folder)]


def no_utf8(folder: Path) -> list[Path]:
    path = Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.parquet"))
    path.write_bytes(write(folder / "1.parquet").read_bytes())
    return [path]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (two_types, r"2\.parquet and .*1\.parquet differ in column 'a': double and int64"),
        (one_column_less, "differ in column 'b': there is none and string"),
        (one_column_more, "differ in column 'b': string and there is none"),
        (no_rows, "there are no rows in the log"),
        (no_parquet, "no readable Parquet file"),
        (nothing_in_it, "is empty: write it again"),
        (no_files, r"there is no \*\.parquet in the folder"),
        (no_match, "there is no such file, and it matches none"),
        (twice, "named twice"),
        (clustered_in_a_pattern, r"takes in the clustered log .*out, .* name that folder itself"),
        (clustered_in_a_folder, r"log takes in the clustered log .*out, whose rows would count twice"),
        (no_utf8, r"caf\\xe9\.parquet' is no UTF-8, which Arrow needs: rename it"),
    ],
)
def test_what_is_no_log(tmp_path: Path, make: Callable[[Path], list[Path]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        LogFiles.open(make(tmp_path))


def test_a_clustered_log_that_is_named_is_read(tmp_path: Path) -> None:
    out = clustered_beside(tmp_path) / "out"
    part = out / "part-00000.parquet"
    for named in (out, out / "*.parquet", part):
        assert find_files([named]) == (part,)
    (out / DESCRIPTION_NAME).unlink()
    assert len(find_files([out.parent])) == len(find_files([out.parent / "*" / "*.parquet"])) == 2


def test_paths_are_text() -> None:
    assert is_utf8(Path("café"))
    assert not is_utf8(Path(os.fsdecode(b"caf\xe9")))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "1.parquet", pa.table({"a": list(range(100_000))}))
    log = LogFiles.open([path])
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 5000] = b"\xff" * 5000
    content[4:400] = b"\xff" * 396
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"1\.parquet cannot be decoded"):
        list(log.batches())


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    log = LogFiles.open([write(tmp_path / "1.parquet", TABLE.rename_columns(["session", "time"]))])
    assert log.check_column("time", "--time") == pa.string()
    with pytest.raises(
        DataError, match=r"--by names 'sesion', but there is no such column. Did you mean 'session'"
    ):
        log.check_column("sesion", "--by")
