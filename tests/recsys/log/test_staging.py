"""windrow.recsys.log.staging: what is read as what, what is refused, and DuckDB's answers against Python's."""

import hashlib
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.external_sort import sort_rows
from windrow.recsys.log.duckdb_sql import open_database, sql_name, sql_text
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.readers import RawBlock
from windrow.recsys.log.staging import StagedLog, stage, staged_columns, text_types

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


def staged(path: Path, log: LogOptions, split: LogSplitOptions, *blocks: RawBlock) -> tuple[int, bool]:
    return stage(
        path, staged_columns(log, split), log, split, ((block, "some file", code) for code, block in enumerate(blocks))
    )


def test_types_of_text_columns() -> None:
    log = log_of(dense=("price", "position"), session="s")
    types = text_types(staged_columns(log, LogSplitOptions(column="file")))
    texts = dict.fromkeys(("t", "s", "file", "position", "history", "w"), "string")
    assert types == {"label": "float64", "price": "float64", **texts}


def test_a_column_that_a_file_lacks(tmp_path: Path) -> None:
    lacking = {name: values for name, values in GOOD.items() if name not in {"history", "w"}}
    log = log_of(optional=("history", "w"))
    staged(tmp_path / "s.parquet", log, LogSplitOptions(), block_of(**GOOD), block_of(**lacking))
    assert parquet.read_table(tmp_path / "s.parquet")["id.history"].to_pylist() == [["x"], None, None, None]
    with pytest.raises(DataError, match=r"a\.csv, line 1: there is no column 'history'; the columns are label, t"):
        staged(tmp_path / "t.parquet", log_of(), LogSplitOptions(), block_of(**lacking))


def test_empty_lists_say_nothing_of_the_others(tmp_path: Path) -> None:
    numbers, empty = GOOD | {"history": [[5], None]}, GOOD | {"history": [[], []], "w": [[], []]}
    for number, blocks in enumerate(([numbers, empty], [empty, numbers])):
        path = tmp_path / f"{number}.parquet"
        staged(path, log_of(), LogSplitOptions(), *(block_of(**block) for block in blocks))
        found = [row or [] for row in parquet.read_table(path)["id.history"].to_pylist()]
        assert sorted(found) == [[], [], [], [5]]


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
        staged(tmp_path / "s", log_of(), LogSplitOptions(), block_of(**GOOD), block_of(7, **GOOD | changes))


def test_row_numbers_in_lists_are_checked(tmp_path: Path) -> None:
    log = log_of(features={"f": FeatureOptions(ids="rows", rows=5, multi_hot=True)}, time="")
    block = block_of(label=[0, 0, 0], f=[[1, 2], [], [4, 5]])
    with pytest.raises(DataError, match="line 3: column 'f' has 5 where"):
        staged(tmp_path / "s", log, LogSplitOptions(), block)


DATES, ISO_DATES = [datetime(2020, 1, 1, tzinfo=UTC)] * 2, ["2020-01-01"] * 2
NUMBERS, TEXTS = [5, 6], ["5", "6"]
ENCODED = pa.array(TEXTS).dictionary_encode()
BY_TIME = "t", log_of(), LogSplitOptions(by="time")
BY_SESSION, BY_COLUMN = ("s", log_of(session="s"), LogSplitOptions()), ("s", log_of(), LogSplitOptions(column="s"))


@pytest.mark.parametrize(
    ("column", "log", "split", "first", "second", "fits"),
    [
        *((*BY_TIME, *pair, False) for pair in ((DATES, NUMBERS), (NUMBERS, DATES), (ISO_DATES, TEXTS))),
        (*BY_TIME, DATES, ISO_DATES, True),
        *(
            (*by, *pair, False)
            for by in (BY_SESSION, BY_COLUMN)
            for pair in ((NUMBERS, TEXTS), (TEXTS, NUMBERS), (NUMBERS, ENCODED))
        ),
        *((*BY_SESSION, *pair, True) for pair in ((TEXTS, ENCODED), (NUMBERS, [5.0, 6.0]))),
    ],
)
def test_times_are_dates_and_keys_are_text_everywhere_or_nowhere(
    tmp_path: Path, column: str, log: LogOptions, split: LogSplitOptions, first: Any, second: Any, fits: bool
) -> None:
    """One session is otherwise two: of a text its hash is taken, of a number the number itself."""
    blocks = [block_of(1 + number, **GOOD | {column: values}) for number, values in enumerate((first, second))]
    if fits:
        staged(tmp_path / "staged.parquet", log, split, *blocks)
        return
    with pytest.raises(DataError, match=rf"line 2: column '{column}' holds .*, but .* in the rows before"):
        staged(tmp_path / "staged.parquet", log, split, *blocks)


@pytest.mark.parametrize("odd", ["plain", 'with "quotes"', "it's", "a;b -- c", "größe"])
def test_names_and_texts_of_any_signs_come_back(tmp_path: Path, odd: str) -> None:
    with open_database("100MB", tmp_path, threads=1) as database:
        found = database.execute(f"SELECT {sql_text(odd)} AS {sql_name(odd)}")
        assert [column[0] for column in found.description] == [odd]
        assert found.fetchone() == (odd,)


ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["b", "a", "é", "Z", None]), st.lists(st.sampled_from("abc"))),
    min_size=1,
    max_size=40,
)


def staged_file(folder: Path, rows: list[tuple[int, str | None, list[str]]]) -> Path:
    times, values, lists = (list(part) for part in zip(*rows, strict=True))
    columns = {
        "time": pa.array(times, pa.int64()),
        "row": pa.array(range(len(rows)), pa.int64()),
        "id.a": pa.array(values, pa.string()),
        "id.b": pa.array(lists, pa.list_(pa.string())),
    }
    parquet.write_table(pa.table(columns), folder / "it's.parquet")
    return folder / "it's.parquet"


@settings(max_examples=25)
@given(ROWS, st.integers(1, 3), st.integers(2, 5) | st.none())
def test_sorting_and_counting(
    rows: list[tuple[int, str | None, list[str]]], min_count: int, max_rows: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with StagedLog(staged_file(folder, rows), folder) as staged:
            staged.sort_by_time()
            found = parquet.read_table(staged.file)
            ordered = sorted(enumerate(rows), key=lambda item: item[1][0])
            assert found["row"].to_pylist() == [row for row, _ in ordered]
            for in_order in (False, True):
                times = [staged.time_of_row(place, in_order=in_order) for place in range(len(rows))]
                assert times == sorted(row[0] for row in rows)

            counts = Counter(value for time, value, _ in rows if time < 3 and value is not None)
            counts.update(value for time, _, values in rows if time < 3 for value in values)
            kept = sorted((-count, value.encode(), value) for value, count in counts.items() if count >= min_count)
            for place, column in enumerate([("id.a", False), ("id.b", True)]):
                staged.count_values(folder / f"counts-{place}.parquet", [column], "time < 3")
            counted = [folder / f"counts-{place}.parquet" for place in range(2)]
            staged.write_vocabulary(folder / "v.parquet", counted, min_count=min_count, max_rows=max_rows)
            vocabulary = parquet.read_table(folder / "v.parquet").to_pylist()
            limit = None if max_rows is None else max_rows - 2
            expected = [
                {"id": place, "value": value, "count": -count}
                for place, (count, _, value) in enumerate(kept[:limit], start=2)
            ]
            assert vocabulary == expected


def test_a_long_vocabulary_keeps_its_order(tmp_path: Path) -> None:
    """Several threads and row groups: ids are in the order of the counts all the same."""
    values = [value for value in range(30_000) for _ in range(1 + value % 7)]
    table = pa.table({"id.a": pa.array(values, pa.int64())})
    parquet.write_table(table, tmp_path / "s.parquet", row_group_size=10_000)
    with StagedLog(tmp_path / "s.parquet", tmp_path) as staged:
        staged.count_values(tmp_path / "counts", [("id.a", False)], "true")
        staged.write_vocabulary(tmp_path / "v", [tmp_path / "counts"], min_count=1, max_rows=None)
    found = parquet.read_table(tmp_path / "v")
    assert found["id"].to_pylist() == list(range(2, 30_002))
    assert found["value"].to_pylist() == sorted(range(30_000), key=lambda value: (-(value % 7), value))


def test_moments(tmp_path: Path) -> None:
    columns = {
        "dense.x": [1.0, 2.0, 6.0, 100.0],
        "dense.same": [3.0] * 4,
        "dense.none": [None] * 4,
        "split": [0, 0, 0, 1],
    }
    table = pa.table(columns).cast(
        pa.schema([(name, pa.int8() if name == "split" else pa.float32()) for name in columns])
    )
    parquet.write_table(table, tmp_path / "s.parquet")
    with StagedLog(tmp_path / "s.parquet", tmp_path) as staged:
        found = staged.moments(["dense.x", "dense.same", "dense.none"], "split = 0")
        assert staged.moments([], "split = 0") == {}
    assert found["dense.x"] == pytest.approx((3, 3.0, statistics.pvariance([1, 2, 6])))
    assert found["dense.same"] == (3, 3.0, 0.0)
    assert found["dense.none"] == (0, 0.0, 0.0)


def test_rows_that_grow_are_sorted_in_pieces_of_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories are short where a log begins, which says nothing of the rest."""
    monkeypatch.setattr("windrow.recsys.log.clustering.external_sort.MOST_PIECE_BYTES", 400_000)
    pieces: list[int] = []

    def watched(*arguments: Any, **options: Any) -> Iterator[Any]:
        for piece in sort_rows(*arguments, **options):
            pieces.append(piece.nbytes)
            yield piece

    monkeypatch.setattr("windrow.recsys.log.staging.sort_rows", watched)
    rows = range(40_000)
    lists = [[7] * (row // 400) for row in rows]
    table = pa.table({"time": [-row for row in rows], "row": rows, "ids": lists})
    parquet.write_table(table, tmp_path / "staged.parquet", row_group_size=1000)
    with StagedLog(tmp_path / "staged.parquet", tmp_path) as staged:
        staged.sort_by_time()
        assert parquet.read_table(staged.file).equals(table.take(list(reversed(rows))))
    assert max(pieces) < 3 * 400_000


def hash_of(session: int) -> int:
    return int.from_bytes(hashlib.md5(str(session).encode()).digest()[8:], "little")


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 9)), min_size=1, max_size=60),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_sorting_by_session(rows: list[tuple[int, int]], shard: bool, cluster: bool, times: bool) -> None:
    """Rows of each split in order of (shard, hash, session, time, row), in shards of about ten."""
    sessions, instants = (list(part) for part in zip(*rows, strict=True))
    splits = [0 if instant < 6 else 1 for instant in instants]
    shards = {code: -(-splits.count(code) // 10) for code in set(splits)}

    def key(row: int) -> tuple[int, ...]:
        hashed = hash_of(sessions[row])
        dealt = (hashed % shards[splits[row]],) if shard else ()
        within = (hashed, sessions[row]) if cluster else ()
        return (*dealt, *within, instants[row] if times else 0, row)

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for limit, value in (
            ("clustering.external_sort.MOST_PIECE_BYTES", 300),
            ("clustering.log_files.MOST_BATCH_ROWS", 7),
        ):
            patch.setattr(f"windrow.recsys.log.{limit}", value)
        folder = Path(name)
        columns = {"session": sessions, "time": instants, "row": list(range(len(rows)))}
        parquet.write_table(
            pa.table({column: pa.array(values, pa.int64()) for column, values in columns.items()}),
            folder / "staged.parquet",
        )
        with StagedLog(folder / "staged.parquet", folder) as staged:
            times_found = [staged.time_of_row(place, in_order=False) for place in range(len(rows))]
            assert times_found == sorted(instants)
            code, wanted = "CASE WHEN time < 6 THEN 0 ELSE 1 END", shards if shard else dict.fromkeys(shards, 1)
            assert staged.rows_of_splits(code) == Counter(splits)
            ranges = staged.ranges_of_sessions(code, wanted, 3, cluster=cluster)
            found = staged.sort_by_session(code, wanted, cluster=cluster, times=times)
            assert parquet.read_table(staged.file)["row"].to_pylist() == sorted(range(len(rows)), key=key)
        dealt = Counter((code, hash_of(session) % shards[code]) for code, session in zip(splits, sessions, strict=True))
        expected = {
            code: tuple(dealt[code, number] for number in range(shards[code]) if dealt[code, number]) for code in shards
        }
        assert found == (expected if shard else {code: (splits.count(code),) for code in shards})
        for code in shards:
            mine = [ranges[row] for row in sorted(range(len(rows)), key=key) if splits[row] == code]
            assert mine == sorted(mine)
