"""windrow.recsys.log.clustering.cluster_log: whole logs against a sort in Python, types and memory included."""

import decimal
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.recsys.log.clustering.cluster_log import ClusterOptions, cluster_log
from windrow.recsys.log.clustering.log_files import DESCRIPTION_NAME

MANY_TYPES: dict[str, pa.Array] = {
    "int8": pa.array([1, None], pa.int8()),
    "half": pa.array([np.float16(1.5), None], pa.float16()),
    "decimal": pa.array([decimal.Decimal("1.25"), None], pa.decimal256(50, 2)),
    "seconds": pa.array([1, None], pa.time32("s")),
    "zone": pa.array([1, None], pa.timestamp("ns", "Europe/Vienna")),
    "span": pa.array([1, None], pa.duration("us")),
    "fixed": pa.array([b"ab", None], pa.binary(2)),
    "large": pa.array(["x", None], pa.large_string()),
    "words": pa.array([["x", None], None], pa.list_(pa.string())),
    "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    "deep": pa.array([[[1], []], None], pa.large_list(pa.list_(pa.int64()))),
    "record": pa.array([{"a": 1, "b": ["c"]}, None], pa.struct([("a", pa.uint16()), ("b", pa.list_(pa.string()))])),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["x", None]).dictionary_encode(),
    "labels": pa.array([["x", None], None], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "ranked": pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int32()), ["low", "high"], ordered=True),
    "nothing": pa.nulls(2),
}


def write_log(folder: Path, *, rows: int = 600, seed: int = 0) -> Path:
    """Sessions interleaved in two files of several row groups; every tenth row has no session, some no time."""
    draws = np.random.default_rng(seed)
    sessions = [None if row % 10 == 9 else f"s{draws.integers(60)}" for row in range(rows)]
    times = [None if row % 17 == 3 else int(draws.integers(100)) for row in range(rows)]
    chosen = pa.array(draws.integers(0, 2, rows))
    columns = {"session": pa.array(sessions), "at": pa.array(times, pa.timestamp("ms")), "row": pa.array(range(rows))}
    columns |= {name: values.take(chosen) for name, values in MANY_TYPES.items()}
    table = pa.table(columns).replace_schema_metadata({"made by": "a test"})
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table.slice(0, rows // 3), folder / "a.parquet", row_group_size=70)
    parquet.write_table(table.slice(rows // 3), folder / "b.parquet", row_group_size=90)
    return folder


def options_for(tmp_path: Path, **changes: Any) -> ClusterOptions:
    settings: dict[str, Any] = {
        "inputs": (tmp_path / "log",),
        "output": tmp_path / "out",
        "by": "session",
        "time": "at",
        "files": 3,
    }
    return ClusterOptions(**settings | changes)


def read(folder: Path) -> list[pa.Table]:
    return [parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))]


def texts(table: pa.Table) -> Counter[str]:
    """A row as text, which can be counted whatever is in it."""
    return Counter(repr(row) for row in table.to_pylist())


def test_sessions_are_whole_in_order_and_in_one_file(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    summary = cluster_log(options_for(tmp_path, row_group_rows=50))
    before, after = pa.concat_tables(read(log)), read(tmp_path / "out")
    assert len(after) == summary.files == 3
    assert before.schema.equals(after[0].schema, check_metadata=True)
    assert texts(before) == texts(pa.concat_tables(after))
    file_of: dict[str, int] = {}
    for number, table in enumerate(after):
        rows = table.select(["session", "at", "row"]).to_pylist()
        ends: set[str] = set()
        for place, row in enumerate(rows):
            if row["session"] is None:
                continue
            assert file_of.setdefault(row["session"], number) == number
            if place and rows[place - 1]["session"] == row["session"]:
                assert key(rows[place - 1]) < key(row)
            else:
                assert row["session"] not in ends, "a session in two pieces"
                ends.add(row["session"])
    sessions = before["session"].to_pylist()
    assert summary.sessions == len(set(sessions) - {None}) + sessions.count(None)
    assert summary.rows == 600
    assert summary.bytes_before == sum(path.stat().st_size for path in log.iterdir())
    assert summary.bytes_after == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.parquet"))
    described = json.loads((tmp_path / "out" / DESCRIPTION_NAME).read_text())
    assert (described["order"], described["by"], described["rows"]) == ("sessions", "session", 600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "out"]
    for path in (tmp_path / "out").glob("*.parquet"):
        metadata = parquet.read_metadata(path)
        assert {metadata.row_group(group).num_rows for group in range(metadata.num_row_groups - 1)} == {50}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["at"] is None, row["at"] or 0, row["row"])


def test_shards_alone_keep_the_order_of_the_log(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    summary = cluster_log(options_for(tmp_path, time=""))
    after = read(tmp_path / "out")
    held = [set(table["session"].to_pylist()) - {None} for table in after]
    assert sum(map(len, held)) == len(set().union(*held))
    assert all(table["row"].to_pylist() == sorted(table["row"].to_pylist()) for table in after)
    assert texts(pa.concat_tables(read(log))) == texts(pa.concat_tables(after))
    assert summary.sessions == cluster_log(options_for(tmp_path, output=tmp_path / "sorted")).sessions


def test_runs_and_buckets_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log")
    cluster_log(options_for(tmp_path))
    # What is held at a time, in bytes: some rows.
    monkeypatch.setattr("windrow.recsys.log.clustering.external_sort.MOST_PIECE_BYTES", 4000)
    told: list[str] = []
    cluster_log(options_for(tmp_path, output=tmp_path / "small"), progress=lambda stage, share: told.append(stage))
    assert told.count("sorting") > 3
    assert told.count("writing") > 3
    files = [sorted(path.read_bytes() for path in (tmp_path / name).glob("*.parquet")) for name in ("out", "small")]
    assert files[0] == files[1]
    assert list(dict.fromkeys(told)) == ["reading sessions", "sorting", "writing"]


def test_dictionaries_are_written_again(tmp_path: Path) -> None:
    """Each file has a dictionary of its own, much larger than a few of its rows."""
    words = [f"a word {row * 7 % 5000:05}" for row in range(10_000)]
    table = pa.table({"session": pa.array(words).dictionary_encode(), "at": range(10_000), "row": range(10_000)})
    (tmp_path / "log").mkdir()
    for number in range(2):
        parquet.write_table(table.slice(5000 * number, 5000), tmp_path / "log" / f"{number}.parquet")
    cluster_log(options_for(tmp_path, files=1, row_group_rows=500))
    after = read(tmp_path / "out")[0]
    assert after.schema.equals(read(tmp_path / "log")[0].schema, check_metadata=True)
    assert after.num_rows == 10_000
    assert [words[row] for row in after["row"].to_pylist()] == after["session"].to_pylist()


def test_a_dictionary_that_is_too_small_for_a_row_group_is_told(tmp_path: Path) -> None:
    """Each file's own row groups were small enough."""
    words = pa.array([f"w{row:03}" for row in range(300)])
    schema = pa.schema([("session", pa.dictionary(pa.int8(), pa.string())), ("at", pa.int64())])
    (tmp_path / "log").mkdir()
    with parquet.ParquetWriter(tmp_path / "log" / "a.parquet", schema) as writer:
        for start in range(0, 300, 100):
            columns = [words.slice(start, 100), pa.array(range(100))]
            writer.write_table(pa.table(columns, names=["session", "at"]).cast(schema))
    cluster_log(options_for(tmp_path, files=1, row_group_rows=100))
    after = read(tmp_path / "out")[0]
    assert after.schema.field("session").type == schema.field("session").type
    assert sorted(after["session"].to_pylist()) == words.to_pylist()
    with pytest.raises(DataError, match=r"300 rows has too many different values .* lower --row-group-rows"):
        cluster_log(options_for(tmp_path, files=1, row_group_rows=300, overwrite=True))


def test_text_alone_has_a_dictionary(tmp_path: Path) -> None:
    columns = {"session": [1, 2], "at": [1, 2], "text": ["a", "b"], "ids": [[1], [2]], "words": [["a"], []]}
    (tmp_path / "log").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "log" / "a.parquet")
    cluster_log(options_for(tmp_path, files=1))
    group = parquet.read_metadata(tmp_path / "out" / "part-00000.parquet").row_group(0)
    found = [group.column(place) for place in range(group.num_columns)]
    assert [column.path_in_schema for column in found if column.has_dictionary_page] == ["text"]
    assert {column.compression for column in found} == {"ZSTD"}


@pytest.mark.parametrize(
    "sessions",
    [
        pa.array([7, 3, 7], pa.int8()),
        pa.array([2**64 - 1, 1, 2**64 - 1], pa.uint64()),
        pa.array(["x", "y", "x"], pa.string_view()),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), ["low", "high"], ordered=True),
        pa.array([b"\xff", b"y", b"\xff"]),
        pa.array([b"a", b"y", b"a"], pa.binary(1)),
    ],
    ids=lambda array: str(array.type),
)
def test_sessions_of_any_type(tmp_path: Path, sessions: pa.Array) -> None:
    (tmp_path / "log").mkdir()
    parquet.write_table(pa.table({"session": sessions, "row": [0, 1, 2]}), tmp_path / "log" / "a.parquet")
    summary = cluster_log(options_for(tmp_path, time="row", files=1000))
    assert (summary.sessions, summary.files) == (2, 2)
    assert sorted(table["row"].to_pylist() for table in read(tmp_path / "out")) == [[0, 2], [1]]


TIMES = (
    pa.timestamp("ns", "Europe/Vienna"),
    pa.timestamp("s"),
    pa.time64("ns"),
    pa.time32("ms"),
    pa.date32(),
    pa.date64(),
    pa.uint64(),
    pa.float32(),
    pa.decimal128(9, 2),
)


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_times_of_any_type_and_unit_order_rows(tmp_path: Path, kind: pa.DataType) -> None:
    unit = 86_400_000 if kind == pa.date64() else 1
    times = pa.array([7 * unit, None, 9 * unit, 8 * unit], kind)
    (tmp_path / "log").mkdir()
    parquet.write_table(pa.table({"session": ["a"] * 4, "at": times, "row": range(4)}), tmp_path / "log" / "a.parquet")
    cluster_log(options_for(tmp_path, files=1))
    assert read(tmp_path / "out")[0]["row"].to_pylist() == [0, 3, 2, 1]


@pytest.mark.parametrize(
    ("option", "column", "words"),
    [
        ("time", "text", "--time names 'text' of type string, expected numbers, dates or times"),
        ("time", "half", "--time names 'half' of type halffloat, expected numbers, dates or times"),
        *(("by", name, f"--by names '{name}' of type .*, expected whole") for name in ("list", "real", "instant")),
    ],
)
def test_times_and_sessions_without_an_order_are_refused(tmp_path: Path, option: str, column: str, words: str) -> None:
    columns = {
        "session": [1],
        "at": [1],
        "text": ["a"],
        "list": [[1]],
        "real": [1.5],
        "half": pa.array([1.5], pa.float16()),
        "instant": pa.array([1], pa.timestamp("ns", "UTC")),
    }
    (tmp_path / "log").mkdir()
    parquet.write_table(pa.table(columns), tmp_path / "log" / "a.parquet")
    with pytest.raises(DataError, match=words):
        cluster_log(options_for(tmp_path, **{option: column}))


def test_memory_that_is_not_enough_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.recsys.log.clustering.cluster_log.DUCKDB_SHARE", 0.0002)
    write_log(tmp_path / "log", rows=60)
    parquet.write_table(pa.table({"session": np.arange(200_000)}), tmp_path / "many.parquet")
    with pytest.raises(StoreError, match=r"cannot write .*out: .*emory.* goes too, raise --memory, or choose another"):
        cluster_log(options_for(tmp_path, inputs=(tmp_path / "many.parquet",), time="session"))


def the_folder_of_somebody(folder: Path) -> dict[str, Any]:
    (folder / "out").mkdir()
    (folder / "out" / "mine.txt").touch()
    return {"overwrite": True}


def a_folder_that_exists(folder: Path) -> dict[str, Any]:
    cluster_log(options_for(folder))
    return {}


def the_log_itself(folder: Path) -> dict[str, Any]:
    cluster_log(options_for(folder))
    return {"inputs": (folder / "out" / "*.parquet",), "overwrite": True}


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (the_folder_of_somebody, "is no clustered log .* and is not replaced"),
        (a_folder_that_exists, "already exists: choose another folder or pass --overwrite"),
        (lambda folder: {"output": folder / "log" / "out"}, "are one in the other"),
        (the_log_itself, "are one in the other"),
    ],
)
def test_outputs_that_are_refused(tmp_path: Path, prepare: Callable[[Path], dict[str, Any]], words: str) -> None:
    write_log(tmp_path / "log", rows=60)
    changes = prepare(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=words):
        cluster_log(options_for(tmp_path, **changes))
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_an_output_among_the_files_of_a_pattern_does_not_count_twice(tmp_path: Path) -> None:
    write_log(tmp_path / "log", rows=60)
    pattern, output = tmp_path / "log" / "*.parquet", tmp_path / "log" / "out"
    for overwrite in (False, True):
        options = options_for(tmp_path, inputs=(pattern,), output=output, files=1, overwrite=overwrite)
        assert cluster_log(options).rows == 60
        assert len(read(output)) == 1
    pattern = tmp_path / "log" / "**" / "*.parquet"
    with pytest.raises(DataError, match=r"takes in the clustered log .*out, whose rows would count twice"):
        cluster_log(options_for(tmp_path, inputs=(pattern,), output=tmp_path / "log" / "out2"))


@pytest.mark.parametrize("output", [".", "run:1"])
def test_outputs_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    write_log(tmp_path / "log", rows=60)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cluster_log(options_for(tmp_path, output=Path(output), overwrite=True))
    assert (tmp_path / "here" / output / DESCRIPTION_NAME).is_file()


def test_a_disk_that_is_too_small_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log", rows=60)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreError, match="has 1000 bytes free, but clustering 60 rows needs about"):
        cluster_log(options_for(tmp_path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.rename", "pathlib.Path.write_text"])
def test_a_disk_that_fails_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    write_log(tmp_path / "log", rows=60)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, fail)
    with pytest.raises(StoreError, match=r"out: .*No space left on device\. Make room on the disk of .*, or choose"):
        cluster_log(options_for(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_damaged_file_is_named_and_nothing_left(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    table = pa.table({"session": list(range(50_000)), "at": list(range(50_000))})
    parquet.write_table(table, log / "a.parquet", row_group_size=10_000)
    (log / "b.parquet").unlink()
    content = bytearray((log / "a.parquet").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 9000] = b"\xff" * 9000
    (log / "a.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet cannot be decoded .*: write the file again"):
        cluster_log(options_for(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


MEMORY_PROGRAM = """
import sys
from pathlib import Path
from windrow.training.epoch_cost import peak_memory_bytes
from windrow.recsys.log.clustering.cluster_log import cluster_log
from windrow.recsys.log.clustering.cluster_log import ClusterOptions

small, large, out, memory_bytes = *map(Path, sys.argv[1:4]), int(sys.argv[4])
def cluster(log, name):
    cluster_log(ClusterOptions(inputs=(log,), output=out / name, by="session", time="at", memory_bytes=memory_bytes))
cluster(small, "small")  # The program itself: libraries, and what they keep.
before = peak_memory_bytes()
cluster(large, "large")
print(peak_memory_bytes() - before)
"""


def write_large_log(folder: Path, blocks: int) -> None:
    """30 MB in memory to a block of 8,000 rows: lists that a file holds in few bytes."""
    folder.mkdir()
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 8001 * 480, 480, np.int32)), pa.array(np.arange(8000 * 480) % 480)
    )
    schema = pa.schema([("session", pa.int64()), ("at", pa.int64()), ("ids", lists.type)])
    with parquet.ParquetWriter(folder / "log.parquet", schema) as writer:
        for block in range(blocks):
            sessions = pa.array(np.arange(8000) % 997 + 500 * block)
            writer.write_table(
                pa.table([sessions, pa.array(np.arange(8000)), lists], schema=schema), row_group_size=8000
            )


def test_a_log_larger_than_memory_takes_no_more_than_allowed(tmp_path: Path) -> None:
    memory_bytes = 256 << 20
    write_large_log(tmp_path / "small", 1)
    write_large_log(tmp_path / "large", 20)  # 600 MB: more than twice what may be held.
    arguments = [tmp_path / "small", tmp_path / "large", tmp_path / "out", memory_bytes]
    (tmp_path / "program.py").write_text(MEMORY_PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < memory_bytes
    assert parquet.read_metadata(tmp_path / "out" / "large" / "part-00000.parquet").num_rows == 20 * 8000


@pytest.mark.parametrize(("changes", "words"), [({"inputs": ()}, "inputs = "), ({"by": ""}, "by = ")])
def test_what_has_to_be_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        options_for(Path("log"), **changes)
