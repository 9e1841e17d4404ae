"""windrow.recsys.log.store: manifest and files of a store: what is written, what is opened, and what is refused."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import StoreError
from windrow.partition.manifest import checksum
from windrow.recsys.log import store as store_module
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import (
    FeatureEntry,
    LogManifest,
    LogStore,
    SplitEntry,
    SplitWriter,
    StoreFile,
    combined_fingerprint,
    plain_settings,
)

PART = "train/part-00000.parquet"


@pytest.fixture(autouse=True, scope="module")
def small_groups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "ROW_GROUP_ROWS", 4)
        patch.setattr(store_module, "FILE_ROWS", 12)
        yield


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    table = pa.table({"label": [0, 1, 1, 0], "a": ["x", "y", "x", None], "b": [1, 2, 3, 4], "p": [1.0, 2.0, 3.0, 4.0]})
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
    assert (split.rows, split.positives, split.base_rates) == (4, (2,), (0.5,))
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
    ("damage", "words"), [(remove, "is missing"), (shorten, "bytes, expected"), (alter, "was altered: SHA-256")]
)
@pytest.mark.parametrize("name", [PART, "vocabularies/a.parquet"])
def test_damage_is_found(store: LogStore, damage: Callable[[Path], None], words: str, name: str) -> None:
    damage(store.path / name)
    with pytest.raises(StoreError, match=rf"{words}.*run `windrow prepare` again"):
        LogStore.open(store.path, verify=True)
    if damage is alter:
        assert LogStore.open(store.path).splits == ("train",)


FILE = StoreFile(name="train/part-00000.parquet", rows=4, num_bytes=100, sha256="ab")
WORDS = StoreFile(name="vocabularies/item.parquet", rows=3, num_bytes=10, sha256="cd")
MANIFEST = LogManifest(
    windrow_version="1",
    dense=("x",),
    dense_missing={"x": 2},
    has_time=True,
    has_session=False,
    features=(
        FeatureEntry(
            name="item",
            table="item",
            rows=5,
            multi_hot=True,
            weighted=False,
            ids="vocabulary",
            counts={"train": {"missing": 1, "unseen": 0, "truncated": 0, "ids": 6}},
        ),
    ),
    splits={"train": SplitEntry(rows=4, positives=(1,), files=(FILE,))},
    vocabularies=(WORDS,),
    origin={"log": {"format": "csv"}},
    fingerprint="ef",
)


def test_round_trip(tmp_path: Path) -> None:
    MANIFEST.write(tmp_path / "manifest.json")
    assert LogManifest.read(tmp_path / "manifest.json") == MANIFEST
    assert MANIFEST.all_files() == (FILE, WORDS)
    assert MANIFEST.features[0].mean_ids("train", 4) == 1.5
    assert MANIFEST.features[0].mean_ids("train", 0) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format_version": 99}, "format version 99, this windrow reads 1: use a newer windrow"),
        ({"format_version": None}, "format version None"),
        ({"splits": None}, "lacks a field"),
        ({"features": [{"name": "a"}]}, "lacks a field"),
        ({"colour": "red"}, r"wrong one \(colour: Unexpected keyword"),
        (
            {"features": [dataclasses.asdict(MANIFEST.features[0]) | {"colour": 1}]},
            r"one \(features\.0\.colour: Unexpected keyword",
        ),
        (
            {"vocabularies": [dataclasses.asdict(WORDS) | {"colour": 1}]},
            r"one \(vocabularies\.0\.colour: Unexpected keyword",
        ),
        (
            {"splits": {"train": {"rows": 4, "positives": 1, "files": [], "colour": 1}}},
            r"one \(splits\.train\.colour: Unexpected keyword",
        ),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "manifest.json"
    MANIFEST.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(StoreError, match=words):
        LogManifest.read(path)


@pytest.mark.parametrize(("text", "words"), [("{", "is not JSON"), ("[]", "holds a list")])
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        LogManifest.read(tmp_path / "manifest.json")
    with pytest.raises(StoreError, match=r"is no prepared log: run `windrow prepare`"):
        LogManifest.read(tmp_path / "none" / "manifest.json")


def test_fingerprints_know_names_and_checksums_alone() -> None:
    assert combined_fingerprint((FILE, WORDS)) == combined_fingerprint((WORDS, FILE))
    assert combined_fingerprint((FILE, WORDS)) != combined_fingerprint((FILE,))
    other = dataclasses.replace(WORDS, sha256="ce")
    assert combined_fingerprint((FILE, other)) != combined_fingerprint((FILE, WORDS))


def test_plain_settings_are_what_comes_back_from_json():
    log = LogOptions(paths=(Path("a.csv"),), format="csv", features={"item": FeatureOptions(multi_hot=True)})
    plain = plain_settings(log)
    assert plain["paths"] == ["a.csv"]
    assert plain["features"]["item"]["max_length"] is None
    assert json.loads(json.dumps(plain)) == plain


def test_manifests_of_before_have_the_order_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    dataclasses.replace(MANIFEST, order="sessions").write(path)
    assert LogManifest.read(path).order == "sessions"
    document = json.loads(path.read_text())
    del document["order"]
    path.write_text(json.dumps(document))
    assert LogManifest.read(path) == MANIFEST
    path.write_text(json.dumps(document | {"order": "colour"}))
    with pytest.raises(StoreError, match=r"wrong one \(order: Input should be 'log', 'session shards' or 'sessions'\)"):
        LogManifest.read(path)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=12))
def test_row_groups_are_full(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    folder = tmp_path_factory.mktemp("store")
    total = sum(lengths)
    with SplitWriter(folder, "train") as writer:
        start = 0
        for length in lengths:
            writer.write(pa.RecordBatch.from_pydict({"a": range(start, start + length)}))
            start += length
    files = writer.files()
    assert [file.rows for file in files] == [12] * (total // 12) + [total % 12] * (total % 12 > 0)
    values = []
    for number, file in enumerate(files):
        assert file.name == f"train/part-{number:05d}.parquet"
        path = folder / file.name
        assert (file.num_bytes, file.sha256) == (path.stat().st_size, checksum(path))
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        assert groups == [4] * (file.rows // 4) + [file.rows % 4] * (file.rows % 4 > 0)
        values += parquet.read_table(path)["a"].to_pylist()
    assert values == list(range(total))


def test_an_error_leaves_no_open_file(tmp_path: Path) -> None:
    def broken() -> None:
        with SplitWriter(tmp_path, "test") as writer:
            writer.write(pa.RecordBatch.from_pydict({"a": [1, 2, 3, 4, 5]}))
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert parquet.read_table(tmp_path / "test" / "part-00000.parquet")["a"].to_pylist() == [1, 2, 3, 4]


def test_lists_of_clustered_samples_are_written_in_full(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"item": [1, 1], "ids": [[1, 2], [1, 2]]})
    found = {}
    for clustered in (False, True):
        with SplitWriter(tmp_path, f"{clustered}", clustered=clustered) as writer:
            writer.write(batch)
        group = parquet.read_metadata(tmp_path / writer.files()[0].name).row_group(0)
        found[clustered] = [group.column(place).has_dictionary_page for place in range(2)]
        assert parquet.read_table(tmp_path / writer.files()[0].name).to_pylist() == batch.to_pylist()
    assert found == {False: [True, True], True: [True, False]}


def test_what_is_never_null_is_declared_so(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "dense": pa.array([[0.5, 1.0], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
            "item": [1, 1],
            "ids": [[1, 2], []],
            "cart": [[1, 2], [1, 2]],
        }
    )
    with SplitWriter(tmp_path, "test", repeats=[("cart", "")]) as writer:
        writer.write(batch)
    found = parquet.read_table(tmp_path / writer.files()[0].name)
    assert {field.name for field in found.schema if field.nullable} == {"cart"}
    assert not any(field.type.value_field.nullable for field in found.schema if field.type.num_fields)
    assert found.select(["dense", "item", "ids"]).to_pylist() == batch.select(["dense", "item", "ids"]).to_pylist()
    assert found["cart"].to_pylist() == [[1, 2], None]
