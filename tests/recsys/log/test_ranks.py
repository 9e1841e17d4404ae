"""windrow.recsys.log.ranks: what several ranks prepare is what one process does, but for where files end."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.comm.loopback import Loopback
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.ranks import Ranks
from windrow.recsys.log.store import LogStore

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

FILE_SAMPLES = (30, 400, 1, 250, 90)


def write_files(folder: Path, *, in_order: bool) -> None:
    """Samples of sessions, whose times come twice, spread over files of different sizes."""
    draw = np.random.default_rng(5)
    rows = sum(FILE_SAMPLES)
    times = np.sort(draw.integers(0, rows // 2, rows))
    if not in_order:
        draw.shuffle(times)
    columns = {
        "label": draw.integers(0, 2, rows),
        "at": times,
        "visit": draw.integers(0, 120, rows),
        "price": [None if draw.random() < 0.1 else float(draw.normal(3, 2)) for _ in range(rows)],
        "item": [f"i{number}" for number in draw.zipf(1.5, rows) % 50],
        "seen": [[int(number) for number in draw.integers(0, 30, draw.integers(0, 4))] for _ in range(rows)],
        "row": np.arange(rows),
    }
    first = 0
    for place, samples in enumerate(FILE_SAMPLES):
        own = {name: values[first : first + samples] for name, values in columns.items()}
        own["seen"] = pa.array(own["seen"], pa.list_(pa.int64()))
        parquet.write_table(pa.table(own), folder / f"{place}.parquet", row_group_size=64)
        first += samples


def log_of(folder: Path) -> LogOptions:
    return LogOptions(
        paths=(folder / "*.parquet",),
        format="parquet",
        label="label",
        dense=("price",),
        dense_transform="standard",
        time="at",
        session="visit",
        features={
            "item": FeatureOptions(min_count=2),
            "seen": FeatureOptions(multi_hot=True),
            "row": FeatureOptions(ids="rows", rows=1000),
        },
    )


def samples(store: LogStore, split: str) -> Any:
    return pa.concat_tables([parquet.read_table(file) for file in store.split(split).files])


def assert_same_samples(one: LogStore, other: LogStore) -> None:
    mine, its = one.manifest, other.manifest
    for name in ("dense_missing", "features", "order", "origin", "has_time", "labels"):
        assert getattr(mine, name) == getattr(its, name), name
    assert mine.moments["price"] == pytest.approx(its.moments["price"])
    assert list(mine.splits) == list(its.splits)
    for split, entry in mine.splits.items():
        assert (entry.rows, entry.positives) == (its.splits[split].rows, its.splits[split].positives)
        found, expected = samples(other, split), samples(one, split)
        dense = [np.stack(table["dense"].to_pylist()) for table in (found, expected)]
        assert dense[0] == pytest.approx(dense[1], abs=1e-5)
        assert found.drop_columns("dense").equals(expected.drop_columns("dense"))
    for table in one.vocabulary_tables:
        assert one.vocabulary(table).to_pydict() == other.vocabulary(table).to_pydict()


WAYS: dict[str, tuple[bool, LogSplitOptions, dict[str, bool]]] = {
    "hash of the row": (True, LogSplitOptions(seed=3), {}),
    "hash of a column": (True, LogSplitOptions(column="visit"), {}),
    "time, in order": (True, LogSplitOptions(by="time", fractions=(0.5, 0.3, 0.2)), {}),
    "time": (False, LogSplitOptions(by="time", fractions=(0.6, 0.4, 0)), {}),
    "instants": (False, LogSplitOptions(by="time", instants=("100", "200")), {}),
    "sessions": (False, LogSplitOptions(), {"cluster": True}),
    "shards": (False, LogSplitOptions(), {"shard": True}),
    "shards by time": (False, LogSplitOptions(by="time"), {"shard": True, "cluster": True}),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_samples_are_those_of_one_process(spmd, shared_tmp_path, monkeypatch, way):
    in_order, split, sessions = WAYS[way]
    for limit, value in (("ranks.SHARD_ROWS", 60), ("ranks.FILE_ROWS", 100), ("store.FILE_ROWS", 100)):
        monkeypatch.setattr(f"windrow.recsys.log.{limit}", value)

    def body(world):
        if world.rank == 0:
            write_files(shared_tmp_path, in_order=in_order)
        world.barrier(stage="written")
        log = log_of(shared_tmp_path)
        found = prepare_log(shared_tmp_path / "ranks", log, split, **sessions, world=world)
        if world.rank == 0:
            assert_same_samples(prepare_log(shared_tmp_path / "one", log, split, **sessions), found)
            assert not (found.path / "work").exists()
        world.barrier(stage="compared")

    spmd(body)


@pytest.mark.parametrize(
    ("split", "sessions"),
    [
        (LogSplitOptions(), {"shard": True}),
        (LogSplitOptions(), {"cluster": True}),
        (LogSplitOptions(by="time", fractions=(1, 0, 0)), {}),
    ],
)
def test_ranks_that_are_dealt_nothing(tmp_path, split, sessions):
    write_files(tmp_path, in_order=False)
    for place in range(len(FILE_SAMPLES)):
        table = parquet.read_table(tmp_path / f"{place}.parquet")
        one = pa.array([place % 2] * len(table))
        table = table.set_column(1, "at", one).set_column(2, "visit", pa.array([7] * len(table)))
        parquet.write_table(table, tmp_path / f"{place}.parquet")
    log = log_of(tmp_path)
    (found, *_) = Loopback.run(4, lambda world: prepare_log(tmp_path / "ranks", log, split, **sessions, world=world))
    assert_same_samples(prepare_log(tmp_path / "one", log, split, **sessions), found)


def test_more_ranks_than_files(tmp_path):
    write_files(tmp_path, in_order=True)
    log = replace(log_of(tmp_path), paths=(tmp_path / "1.parquet", tmp_path / "3.parquet"))
    split = LogSplitOptions(by="files", validation_paths=(tmp_path / "4.parquet",))
    (found, *_) = Loopback.run(5, lambda world: prepare_log(tmp_path / "ranks", log, split, world=world))
    assert_same_samples(prepare_log(tmp_path / "one", log, split), found)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("at", pa.array(["2020-01-01"] * 400), "column of 'time' holds dates and whole numbers"),
        ("item", pa.array(range(400)), "column of 'id.item' holds int64 in some files, but string in others"),
    ],
)
def test_files_that_differ_from_those_of_other_ranks(tmp_path, column, values, message):
    write_files(tmp_path, in_order=True)
    # The other rank has the first two.
    for place in (2, 3, 4):
        table = parquet.read_table(tmp_path / f"{place}.parquet")
        table = table.set_column(table.schema.get_field_index(column), column, values[: len(table)])
        parquet.write_table(table, tmp_path / f"{place}.parquet")
    with pytest.raises(DataError, match=message):
        Loopback.run(
            2, lambda world: prepare_log(tmp_path / "s", log_of(tmp_path), LogSplitOptions(column="visit"), world=world)
        )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("absent", [["price", "item"], ["seen", "item"]])
def test_columns_that_are_absent_from_the_first_files(tmp_path, absent):
    write_files(tmp_path, in_order=True)
    # Of two ranks the first has none, of one the first files; of four a rank has some that follow.
    for place in (0, 1):
        table = parquet.read_table(tmp_path / f"{place}.parquet")
        parquet.write_table(table.drop_columns(absent), tmp_path / f"{place}.parquet")
    log = replace(log_of(tmp_path), optional=tuple(absent))
    one = prepare_log(tmp_path / "one", log, LogSplitOptions())
    assert one.table_rows()["item"] > 10
    for size in (2, 4):
        found = Loopback.run(
            size, lambda world: prepare_log(tmp_path / f"s{world.size}", log, LogSplitOptions(), world=world)
        )
        assert_same_samples(one, found[0])


def test_equal_values_on_all_ranks_deviate_by_nothing():
    """Their means differ by rounding, which is not divided by."""
    told = [(3, 0.1, 0.0), (7, 0.1 + 2**-56, 0.0)]
    found = Loopback.run(2, lambda world: Ranks(world, None).moments({"x": told[world.rank]}))
    assert [moments["x"][1] for moments in found] == [1.0, 1.0]


@given(st.lists(st.lists(st.floats(-100, 100), max_size=6), min_size=1, max_size=4))
def test_moments_are_those_of_all_values(parts):
    told = [(len(part), *(map(float, (np.mean(part), np.var(part))) if part else (0.0, 0.0))) for part in parts]
    found = Loopback.run(len(parts), lambda world: Ranks(world, None).moments({"x": told[world.rank]}))
    values = [value for part in parts for value in part]
    mean, deviation = (np.mean(values), np.std(values)) if values else (0.0, 1.0)
    for moments in found:
        assert moments["x"] == pytest.approx((mean, deviation if deviation > 1e-6 else moments["x"][1]), abs=1e-6)
        assert math.isfinite(moments["x"][1])
        assert moments["x"][1] > 0
