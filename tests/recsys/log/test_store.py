"""windrow.recsys.log.store: what is opened, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import StoreError
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore

PART = "train/part-00000.parquet"


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    table = pa.table(
        {"label": [0, 1, 1, 0], "a": ["x", "y", "x", None], "b": [1, 2, 3, 4], "p": [1.0, 2.0, 3.0, 4.0]}
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    log = LogOptions(
        paths=(tmp_path / "log.parquet",),
        format="parquet",
        dense=("p",),
        features={"a": FeatureOptions(), "b": FeatureOptions(ids="rows", rows=9, table="t")},
    )
    return prepare_log(tmp_path / "store", log, LogSplitOptions(fractions=(1.0, 0.0, 0.0)))


def test_what_a_store_says(store: LogStore) -> None:
    opened = LogStore.open(store.path, verify=True)
    assert opened == store
    assert opened.dense == ("p",)
    assert [feature.name for feature in opened.features] == ["a", "b"]
    assert opened.table_rows() == {"a": 4, "t": 9}
    split = opened.split("train")
    assert (split.rows, split.positives, split.base_rate) == (4, 2, 0.5)
    assert split.files == (store.path / PART,)
    assert split.file_rows == (4,)
    assert opened.vocabulary("a").to_pylist() == [
        {"id": 2, "value": "x", "count": 2},
        {"id": 3, "value": "y", "count": 1},
    ]
    with pytest.raises(StoreError, match="no split 'test', only train"):
        opened.split("test")
    with pytest.raises(StoreError, match="no vocabulary of 't'"):
        opened.vocabulary("t")


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])


@pytest.mark.parametrize(
    ("damage", "words"),
    [(remove, "is missing"), (shorten, "bytes, expected"), (alter, "was altered: SHA-256")],
)
@pytest.mark.parametrize("name", [PART, "vocabularies/a.parquet"])
def test_damage_is_found(store: LogStore, damage: Callable[[Path], None], words: str, name: str) -> None:
    damage(store.path / name)
    with pytest.raises(StoreError, match=rf"{words}.*run `windrow prepare` again"):
        LogStore.open(store.path, verify=True)
    if damage is alter:
        assert LogStore.open(store.path).splits == ("train",)
