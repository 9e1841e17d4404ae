"""windrow.recsys.log.store: round trip, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from windrow.comm.errors import StoreError
from windrow.recsys.log.options import FeatureOptions, LogOptions
from windrow.recsys.log.store import (
    FeatureEntry,
    LogManifest,
    SplitEntry,
    StoreFile,
    combined_fingerprint,
    plain_settings,
)

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
    splits={"train": SplitEntry(rows=4, positives=1, files=(FILE,))},
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
        ({"colour": "red"}, "one too many"),
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
    with pytest.raises(StoreError, match="samples in order 'colour', which is unknown"):
        LogManifest.read(path)
