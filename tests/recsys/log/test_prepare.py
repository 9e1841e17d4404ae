"""windrow.recsys.log.prepare: whole logs against a slow preparation in Python."""

import csv
import itertools
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.random import hash_ids
from windrow.recsys.batches.arrow_columns import filled_in
from windrow.recsys.log import staging
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare, prepare_log
from windrow.recsys.log.store import LogStore

ROW = st.tuples(st.integers(0, 1), st.integers(0, 30), st.sampled_from(["", "a", "b", "c", "d"]))
FEATURES = {"word": FeatureOptions(min_count=2), "file": FeatureOptions()}


def write_csv(path: Path, rows: list[tuple[Any, ...]], header: tuple[str, ...] = ("label", "time", "word")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


WHOLE = LogSplitOptions(fractions=(1.0, 0.0, 0.0))


def csv_log(*paths: Path, **options: Any) -> LogOptions:
    return LogOptions(paths=paths, format="csv", **options)


def samples(store: LogStore, split: str) -> list[dict[str, Any]]:
    return [row for file in store.split(split).files for row in parquet.read_table(file).to_pylist()]


@settings(max_examples=20)
@given(st.lists(st.lists(ROW, min_size=4, max_size=20), min_size=1, max_size=3))
def test_a_log_split_by_time(tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[int, int, str]]]) -> None:
    folder = tmp_path_factory.mktemp("log")
    for number, rows in enumerate(files):
        write_csv(folder / f"{number}.csv", rows)
    log = csv_log(folder / "*.csv", time="time", features=FEATURES)
    ordered = sorted(((*row, str(number)) for number, rows in enumerate(files) for row in rows), key=lambda row: row[1])
    cut = ordered[round(0.5 * len(ordered))][1]
    train = [row for row in ordered if row[1] < cut]
    test = [row for row in ordered if row[1] >= cut]
    split = LogSplitOptions(by="time", fractions=(0.5, 0.0, 0.5))
    if not train:
        with pytest.raises(DataError, match="the train split has no samples"):
            prepare_log(folder / "store", log, split)
        assert not (folder / "store").exists()
        return
    store = prepare_log(folder / "store", log, split)
    LogStore.open(store.path, verify=True)
    words = Counter(word for _, _, word, _ in train if word)
    kept = sorted((word for word in words if words[word] > 1), key=lambda word: (-words[word], word))
    rows_of = {word: row for row, word in enumerate(kept, start=2)}
    names = Counter(name for *_, name in train)
    names_of = {name: row for row, name in enumerate(sorted(names, key=lambda name: (-names[name], name)), start=2)}
    for name, rows in (("train", train), ("test", test)):
        assert samples(store, name) == [
            {
                "label": float(label),
                "word": rows_of.get(word, 1) if word else 0,
                "file": names_of.get(file, 1),
                "time": time,
            }
            for label, time, word, file in rows
        ]
        assert store.split(name).rows == len(rows)
        assert store.split(name).positives == (sum(row[0] for row in rows),)
        assert store.features[0].counts[name]["missing"] == sum(not row[2] for row in rows)
    assert store.splits == ("train", "test")
    assert store.table_rows() == {"word": 2 + len(rows_of), "file": 2 + len(names_of)}
    assert store.vocabulary("word")["value"].to_pylist() == list(rows_of)


def test_formats_agree(tmp_path: Path) -> None:
    """One log as CSV, gzipped CSV and Parquet gives the same samples."""
    import gzip

    rows = [(n % 3 == 0, 1000 - n, "abcd"[n * n % 4]) for n in range(300)]
    table = pa.table(dict(zip(("label", "time", "word"), map(list, zip(*rows, strict=True)), strict=True)))
    text = write_csv(tmp_path / "log.csv", [(int(label), time, word) for label, time, word in rows])
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.read_bytes()))
    parquet.write_table(table, tmp_path / "log.parquet", row_group_size=70)
    found = []
    for name, kind in (("log.csv", "csv"), ("log.csv.gz", "csv"), ("log.parquet", "parquet")):
        log = LogOptions(paths=(tmp_path / name,), format=kind, time="time", features=FEATURES)  # type: ignore[arg-type]
        split = LogSplitOptions(by="time", instants=("850", "950"))
        store = prepare_log(tmp_path / "store", log, split, overwrite=True)
        found.append((store.fingerprint, [samples(store, split) for split in store.splits]))
        assert [row["time"] for row in samples(store, "train")] == list(range(701, 850))
    assert found[0] == found[1] == found[2]
    assert not list(tmp_path.glob("store.*"))
    assert store.manifest.origin["log"]["paths"] == [str(tmp_path / "log.parquet")]


def test_splits_by_hash_and_files_are_disjoint_and_complete(tmp_path: Path) -> None:
    first = write_csv(tmp_path / "a.csv", [(0, n, f"w{n % 10}") for n in range(400)])
    second = write_csv(tmp_path / "b.csv", [(1, n, "w0") for n in range(400, 450)])
    log = csv_log(first, second, time="time", features={"word": FeatureOptions()})
    store = prepare_log(tmp_path / "rows", log, LogSplitOptions(seed=3))
    times = [[row["time"] for row in samples(store, split)] for split in store.splits]
    assert sorted(time for part in times for time in part) == list(range(450))
    assert all(part == sorted(part) for part in times)
    store = prepare_log(tmp_path / "words", log, LogSplitOptions(column="word", fractions=(0.5, 0.25, 0.25)))
    held = [{row["time"] % 10 for row in samples(store, split) if row["time"] < 400} for split in store.splits]
    assert sorted(word for words in held for word in words) == list(range(10))

    log = csv_log(first, time="time", features={"word": FeatureOptions()})
    store = prepare_log(tmp_path / "files", log, LogSplitOptions(by="files", test_paths=(second,)))
    assert [store.split(split).rows for split in ("train", "test")] == [400, 50]
    with pytest.raises(DataError, match=r"a\.csv: a file is in two splits"):
        prepare_log(tmp_path / "twice", log, LogSplitOptions(by="files", test_paths=(first,)))


def test_a_bad_log_leaves_nothing(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", [(0, 1, "a"), (2, 2, "b")])
    with pytest.raises(DataError, match=r"log\.csv, line 3: column 'label' is 2.*expected 0 or 1"):
        prepare_log(tmp_path / "store", csv_log(path), LogSplitOptions())
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_contradictions_are_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", [(0, 1, "a")])
    log = csv_log(path)
    with pytest.raises(RecipeError, match="set time in"):
        prepare_log(tmp_path / "store", log, LogSplitOptions(by="time"))
    with pytest.raises(DataError, match=r"split has no samples \(.* 1\): give it a larger share"):
        prepare_log(tmp_path / "store", log, LogSplitOptions())
    with pytest.raises(RecipeError, match=r"cluster = true needs the column of sessions: set session in \[log\]"):
        prepare_log(tmp_path / "store", log, LogSplitOptions(), cluster=True)
    (tmp_path / "no.parquet").write_text("x")
    with pytest.raises(DataError, match=r"no\.parquet: no readable Parquet file"):
        prepare(tmp_path / "no.parquet", features=["item"])
    with pytest.raises(RecipeError, match="shard = true needs"):
        prepare_log(tmp_path / "store", log, LogSplitOptions(), shard=True)
    with pytest.raises(RecipeError, match="needs no preparation"):
        prepare_log(tmp_path / "s", LogOptions(paths=(path,), format="interactions"), LogSplitOptions())
    stages: list[str] = []
    prepare_log(tmp_path / "store", log, WHOLE, progress=lambda stage, share: stages.append(stage))
    assert stages == ["reading", "mapping", "checksums"]
    with pytest.raises(StoreError, match="already exists"):
        prepare_log(tmp_path / "store", log, WHOLE)


def test_only_a_store_is_replaced(tmp_path: Path) -> None:
    log = csv_log(write_csv(tmp_path / "log.csv", [(n % 2, n, "a") for n in range(40)]))
    (tmp_path / "file").write_text("mine")
    for store in (tmp_path, tmp_path / "file"):
        with pytest.raises(StoreError, match=r"is no prepared log .* and is not replaced"):
            prepare_log(store, log, WHOLE, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log.csv"]
    (tmp_path / "store").mkdir()
    for _ in range(2):  # First an empty folder, then a store.
        assert prepare_log(tmp_path / "store", log, WHOLE, overwrite=True).split("train").rows == 40


def test_samples_of_one_instant_cannot_be_split(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", [(n % 2, 7, "a") for n in range(40)])
    log = csv_log(path, time="time")
    with pytest.raises(DataError, match="samples of one instant stay together"):
        prepare_log(tmp_path / "store", log, LogSplitOptions(by="time"))


def timed_log(folder: Path) -> LogOptions:
    """Samples with many words, the latest one first."""
    path = write_csv(folder / "log.csv", [(n % 2, -n, f"word {n}") for n in range(400)])
    return csv_log(path, time="time", features={"word": FeatureOptions()})


@pytest.mark.parametrize("full_from", ["reading", "sorting by time", "counting", "mapping", "checksums"])
def test_a_full_disk_is_explained_and_leaves_nothing(tmp_path: Path, full_from: str) -> None:
    """Staged log, rows in another order and vocabularies (by DuckDB), samples, manifest: whatever finds no room."""
    log, (soft, hard) = timed_log(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(stage: str, share: float) -> None:
        if stage.startswith(full_from):
            # The nearest to a full disk that a process can have: the system refuses to make files longer.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    try:
        with pytest.raises(StoreError, match=r"cannot write .*store: .*File too large.*Make room on the disk"):
            prepare_log(tmp_path / "store", log, LogSplitOptions(by="time"), progress=fill_up)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_too_little_memory_is_explained_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = timed_log(tmp_path)
    monkeypatch.setattr(staging, "MEMORY_BYTES", 1_000_000)
    with pytest.raises(StoreError, match=r"cannot write .*store: Out of Memory Error: [^\n]*\. Make room on"):
        prepare_log(tmp_path / "store", log, LogSplitOptions(by="time"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_features_that_share_a_table_share_its_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "label": [1, 0],
            "item": [7, 5],
            "history": [[5, 5, 9], None],
            "weights": [[0.1, 0.2, 0.3], None],
            "x": [1.0, 3.0],
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    features = {
        "item": FeatureOptions(),
        "history": FeatureOptions(multi_hot=True, weights="weights", max_length=2, table="item"),
    }
    log = LogOptions(
        paths=(tmp_path / "log.parquet",), format="parquet", features=features, dense=("x",), dense_transform="standard"
    )
    store = prepare_log(tmp_path / "store", log, WHOLE)
    assert store.vocabulary("item")["value"].to_pylist() == [5, 7, 9]
    first, second = samples(store, "train")
    assert first == {
        "label": 1.0,
        "dense": [-1.0],
        "item": 3,
        "history": [2, 4],
        "history.weights": pytest.approx([0.2, 0.3]),
    }
    assert second == {"label": 0.0, "dense": [1.0], "item": 2, "history": [], "history.weights": []}
    assert store.features[1].mean_ids("train", 2) == 1.0

    features = {"item": FeatureOptions(), "x": FeatureOptions(column="names", table="item")}
    log = LogOptions(paths=log.paths, format="parquet", features=features)
    parquet.write_table(table.append_column("names", [["a", "b"]]), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="share table 'item', but hold int64 and string"):
        prepare_log(tmp_path / "mixed", log, WHOLE)


def test_dense_values_are_rounded_after_they_are_made_standard(tmp_path: Path) -> None:
    """Seconds since 1970 differ in digits that float32 has not."""
    seconds = [1_700_000_000 + row % 50 for row in range(200)]
    table = pa.table({"label": [row % 2 for row in range(200)], "second": seconds, "item": [0] * 200})
    parquet.write_table(table, tmp_path / "log.parquet")
    store = prepare(tmp_path / "log.parquet", tmp_path / "store", dense="second", features="item",
                    split=WHOLE, dense_transform="standard")  # fmt: skip
    found = np.array([row["dense"] for row in samples(store, "train")]).flatten()
    np.testing.assert_allclose(found, (np.array(seconds) - np.mean(seconds)) / np.std(seconds), rtol=1e-6)


def test_repeats_that_are_left_out_are_those_of_the_sample_before(tmp_path: Path) -> None:
    rows = 3000
    path = tmp_path / "log.parquet"
    carts = [[row // 7, row // 7 + 1] for row in range(rows)]
    table = {"label": [row % 2 for row in range(rows)], "cart": carts, "item": list(range(rows))}
    parquet.write_table(pa.table({**table, "weight": [[0.5, row // 14] for row in range(rows)]}), path)
    features = {
        "cart": FeatureOptions(ids="rows", rows=rows, multi_hot=True, weights="weight"),
        "item": FeatureOptions(ids="rows", rows=rows),
    }
    log = LogOptions(paths=(path,), format="parquet", features=features)
    full, left_out = (
        prepare_log(tmp_path / name, log, WHOLE, leave_out_repeats=name == "left out") for name in ("full", "left out")
    )
    assert [feature.repeats_left_out for feature in full.features] == [False, False]
    assert [feature.repeats_left_out for feature in left_out.features] == [True, True]
    (whole,), (held,) = (
        [parquet.read_table(file) for file in store.split("train").files] for store in (full, left_out)
    )
    assert held["cart"].null_count == held["cart.weights"].null_count == rows - len(range(0, rows, 7))
    assert held["item"].null_count == 0
    assert filled_in(held).cast(whole.schema).equals(whole)


def session_log(path: Path, rows: int = 900) -> Path:
    """Sessions interleaved, times out of order and often equal."""
    draws = [hash_ids(key, np.arange(rows)) for key in (1, 2, 3)]
    text = [
        (int(draw % 2), int(time % 50), f"s{session % 40}", row)
        for row, (draw, time, session) in enumerate(zip(*draws, strict=True))
    ]
    return write_csv(path, text, ("label", "time", "session", "row"))


BY_TIME = LogSplitOptions(by="time", fractions=(0.7, 0.1, 0.2))
BY_HASH = LogSplitOptions(by="hash", fractions=(0.7, 0.0, 0.3))


@pytest.mark.parametrize(
    ("split", "shard", "cluster"),
    [(BY_TIME, False, True), (BY_TIME, True, False), (BY_HASH, True, False), (BY_HASH, True, True)],
)
def test_samples_of_a_session_stand_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: LogSplitOptions, *, shard: bool, cluster: bool
) -> None:
    monkeypatch.setattr("windrow.recsys.log.ranks.SHARD_ROWS", 150)
    monkeypatch.setattr("windrow.recsys.log.clustering.log_files.MOST_BATCH_ROWS", 100)
    monkeypatch.setattr("windrow.recsys.log.clustering.external_sort.MOST_PIECE_BYTES", 3000)
    features = {"row": FeatureOptions(ids="rows", rows=900)}
    log = csv_log(session_log(tmp_path / "log.csv"), time="time", session="session", features=features)
    plain = prepare_log(tmp_path / "plain", log, split)
    store = prepare_log(tmp_path / "store", log, split, shard=shard, cluster=cluster)
    LogStore.open(store.path, verify=True)
    assert plain.manifest.order == "log"
    assert store.manifest.order == ("sessions" if cluster else "session shards")
    assert store.manifest.origin["deduplication"] == {"shard": shard, "cluster": cluster}
    for name in plain.splits:
        before, after = samples(plain, name), samples(store, name)
        assert sorted(row["row"] for row in before) == sorted(row["row"] for row in after)
        if cluster:
            check_sessions(after)
        files = store.split(name).files
        assert len(files) == (-(-len(before) // 150) if shard else 1)
        if shard:
            held = [parquet.read_table(file) for file in files]
            sessions = [set(table["session"].to_pylist()) for table in held]
            assert sum(map(len, sessions)) == len(set().union(*sessions))
            if not cluster:
                place = {row["row"]: number for number, row in enumerate(before)}
                for table in held:
                    places = [place[row] for row in table["row"].to_pylist()]
                    assert places == sorted(places)


def check_sessions(rows: list[dict[str, Any]]) -> None:
    """Each session in one piece, in order of time and then of the log."""
    pieces = [list(piece) for _, piece in itertools.groupby(rows, key=lambda row: row["session"])]
    assert len(pieces) == len({row["session"] for row in rows})
    for piece in pieces:
        assert piece == sorted(piece, key=lambda row: (row["time"], row["row"]))


def test_sessions_without_times_keep_the_order_of_the_log(tmp_path: Path) -> None:
    path = session_log(tmp_path / "log.csv")
    features = {"row": FeatureOptions(ids="rows", rows=900)}
    log = csv_log(path, session="session", features=features)
    store = prepare_log(tmp_path / "store", log, WHOLE, cluster=True)
    check_sessions([{"time": 0, **row} for row in samples(store, "train")])
