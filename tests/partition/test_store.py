"""Open a store: round trip, and what is said of one that is damaged or for another run."""

import json
import re
import shutil
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import StoreError
from windrow.partition.book import PartitionBook
from windrow.partition.manifest import CURE, FORMAT_VERSION, MANIFEST_NAME
from windrow.partition.options import PartitionOptions
from windrow.partition.quality import measure_quality
from windrow.partition.store import BOOK_ARRAYS, PartitionStore, part_folder, write_store

ASSIGNMENT = np.array([1, 0, 1, 0, 0, 1, 2, 2], np.int32)
INDPTR, INDICES = np.arange(9), np.roll(np.arange(8, dtype=np.int32), 1)
FEATURES = np.arange(16, dtype=np.float32).reshape(8, 2)
BOOK = PartitionBook.from_assignment(ASSIGNMENT, 3)
OPTIONS = PartitionOptions(num_parts=3, method="random")
QUALITY = measure_quality(INDPTR, INDICES, ASSIGNMENT, 3, train_ids=np.array([0, 1, 6]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes."""
    path = tmp_path_factory.mktemp("whole") / "store"
    write_store(
        path, BOOK,
        shared={"indptr": INDPTR, "indices": INDICES, "nothing": np.empty((0, 2))},
        sharded={"features": FEATURES[BOOK.new_to_old]},
        metadata={"task": "binary", "classes": ["a", "b"]}, quality=QUALITY, options=OPTIONS,
    )  # fmt: skip
    return path


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "store")


def test_round_trip(whole: Path) -> None:
    store = PartitionStore.open(whole, expect_parts=3)
    assert store.path == whole
    assert store.metadata == {"task": "binary", "classes": ["a", "b"]}
    assert store.quality == QUALITY
    assert store.manifest.options == {**asdict(OPTIONS), "balance": list(OPTIONS.balance)}
    for name in ("offsets", "new_to_old", "old_to_new"):
        assert getattr(store.book, name).tolist() == getattr(BOOK, name).tolist()
        assert getattr(store.book, name).dtype == np.int64
    assert store.book.assignment().tolist() == ASSIGNMENT.tolist()
    assert store.shared("indices").tolist() == INDICES.tolist()
    assert store.shared("nothing").shape == (0, 2)
    rows = np.concatenate([store.sharded("features", part) for part in range(3)])
    assert store.book.restore(rows).tolist() == FEATURES.tolist()
    for part in range(3):
        ids = store.book.to_original(np.arange(*store.book.part_range(part)))
        assert store.sharded("features", part).tolist() == FEATURES[ids].tolist()


@settings(deadline=None, max_examples=15)
@given(
    st.integers(1, 5).flatmap(lambda p: st.tuples(st.just(p), st.lists(st.integers(0, p - 1), min_size=1)))
)
def test_any_book_survives_and_rows_find_their_vertices(drawn: tuple[int, list[int]]) -> None:
    num_parts, assignment = drawn
    book = PartitionBook.from_assignment(np.array(assignment), num_parts)
    rows = np.arange(len(assignment)) * 10
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        write_store(path, book, shared={}, sharded={"rows": rows[book.new_to_old]}, metadata={})
        store = PartitionStore.open(path, expect_parts=num_parts)
        assert store.book.assignment().tolist() == assignment
        assert (store.quality, store.manifest.options, store.manifest.num_edges) == (None, {}, 0)
        stored = np.concatenate([store.sharded("rows", part) for part in range(num_parts)])
        assert store.book.restore(stored).tolist() == rows.tolist()
        assert store.book.to_new(store.book.to_original(np.arange(len(rows)))).tolist() == list(
            range(len(rows))
        )


def test_arrays_are_mapped_read_only(whole: Path) -> None:
    store = PartitionStore.open(whole)
    for array in (store.shared("indices"), store.sharded("features", 1), store.book.new_to_old):
        assert isinstance(array, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_moved_store_opens(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "elsewhere")
    assert PartitionStore.open(tmp_path / "elsewhere").shared("indptr").tolist() == INDPTR.tolist()


def test_another_number_of_ranks_is_refused(whole: Path) -> None:
    message = (
        f"{whole} holds 3 parts, but the run has 4 ranks: run `windrow partition` again with num_parts = 4, "
        "or start 3 ranks"
    )
    with pytest.raises(StoreError, match=re.escape(message)):
        PartitionStore.open(whole, expect_parts=4)


def test_arrays_that_are_not_there_are_named_with_those_that_are(whole: Path) -> None:
    store = PartitionStore.open(whole)
    with pytest.raises(
        StoreError, match=r"holds no shared/scores\.npy; it holds parts/00000/features\.npy, .*shared/"
    ):
        store.shared("scores")
    with pytest.raises(StoreError, match=r"holds no parts/00003/features\.npy"):
        store.sharded("features", 3)
    with pytest.raises(StoreError, match=r"holds no parts/00000/indices\.npy"):
        store.sharded("indices", 0)


FILES = [
    *(f"shared/{name}.npy" for name in (*BOOK_ARRAYS, "indices", "nothing")),
    f"{part_folder(1)}/features.npy",
]
VERIFY = pytest.mark.parametrize("verify", [True, False])


@VERIFY
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store: Path, name: str, verify: bool) -> None:
    (store / name).unlink()
    with pytest.raises(StoreError, match=re.escape(f"{store / name} is missing: {CURE}")):
        PartitionStore.open(store, verify=verify)


@VERIFY
@pytest.mark.parametrize("change", [-1, -40, None, 1])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_longer_file_is_named(
    store: Path, name: str, change: int | None, verify: bool
) -> None:
    content = (store / name).read_bytes()
    found = 0 if change is None else len(content) + change
    (store / name).write_bytes((content + b"\0")[:found])
    message = f"{store / name} has {found} bytes, expected {len(content)}: {CURE}"
    with pytest.raises(StoreError, match=re.escape(message)):
        PartitionStore.open(store, verify=verify)


# NumPy warns of some headers that it can still read; the checksum tells that they were altered.
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(FILES), st.data())
def test_one_altered_byte_anywhere_is_found(whole: Path, name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Reading `.npy` or `.npz` file|Data type alias 'a'")
        store = shutil.copytree(whole, Path(folder) / "store")
        content = bytearray((store / name).read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        (store / name).write_bytes(content)
        with pytest.raises(StoreError, match=f"{re.escape(str(store / name))} .*{CURE}"):
            PartitionStore.open(store)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize(
    ("position", "value"), [(0, 0), (6, 9), (8, 1), (8, 255), (21, 44), (26, 66), (40, 0)]
)
def test_a_broken_header_is_told_without_checksums(store: Path, name: str, position: int, value: int) -> None:
    content = bytearray((store / name).read_bytes())
    content[position] = value
    (store / name).write_bytes(content)
    with pytest.raises(StoreError, match=rf"{re.escape(str(store / name))} is no array file \(.*\): {CURE}"):
        PartitionStore.open(store, verify=False)


def test_an_altered_value_is_told_with_both_checksums(store: Path) -> None:
    path = store / part_folder(1) / "features.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    message = rf"{re.escape(str(path))} was altered: SHA-256 [0-9a-f]{{64}}, expected [0-9a-f]{{64}}; {CURE}"
    with pytest.raises(StoreError, match=message):
        PartitionStore.open(store)
    opened = PartitionStore.open(store, verify=False)
    opened.verify(part=0)
    opened.verify(part=2)
    with pytest.raises(StoreError, match=message):
        opened.verify(part=1, shared=False)
    with pytest.raises(StoreError, match=message):
        opened.verify()


def test_shared_files_can_be_left_out_of_the_check(store: Path) -> None:
    path = store / "shared" / "indices.npy"
    np.save(path, INDICES[::-1])
    opened = PartitionStore.open(store, verify=False)
    opened.verify(shared=False)
    with pytest.raises(StoreError, match="was altered"):
        opened.verify(part=0)


def test_a_file_that_vanishes_after_opening_is_named(store: Path) -> None:
    opened = PartitionStore.open(store)
    (store / "shared" / "indices.npy").unlink()
    with pytest.raises(StoreError, match="is missing"):
        opened.shared("indices")
    with pytest.raises(StoreError, match="is missing"):
        opened.verify()


def test_an_array_of_another_type_or_shape_is_told(store: Path) -> None:
    path = store / "shared" / "indices.npy"
    np.save(path, np.zeros(8, np.float32))
    opened = PartitionStore.open(store, verify=False)
    with pytest.raises(StoreError, match=rf"holds <f4 \(8,\), expected <i4 \(8,\): {CURE}"):
        opened.shared("indices")
    np.save(path, np.zeros((4, 2), np.int32))
    with pytest.raises(StoreError, match=r"holds <i4 \(4, 2\), expected <i4 \(8,\)"):
        opened.shared("indices")


def rewrite_manifest(store: Path, **changes: Any) -> None:
    path = store / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_manifest_that_is_not_json_is_told(store: Path) -> None:
    (store / MANIFEST_NAME).write_text((store / MANIFEST_NAME).read_text()[:-10])
    with pytest.raises(StoreError, match=rf"manifest\.json is not JSON \(.*\): {CURE}"):
        PartitionStore.open(store)


@pytest.mark.parametrize(
    ("version", "cure"), [(FORMAT_VERSION + 1, f"use a newer windrow, or {CURE}"), (0, CURE), (None, CURE)]
)
def test_a_manifest_of_another_format_is_told(store: Path, version: int | None, cure: str) -> None:
    rewrite_manifest(store, format_version=version)
    message = f"has format version {version}, this windrow reads {FORMAT_VERSION}: {cure}"
    with pytest.raises(StoreError, match=rf"{re.escape(message)}$"):
        PartitionStore.open(store)


def test_a_folder_that_is_no_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=f"is missing, so {re.escape(str(tmp_path))} is no partition store: {CURE}"
    ):
        PartitionStore.open(tmp_path)


def test_the_folder_may_be_given_as_text(whole: Path) -> None:
    assert PartitionStore.open(str(whole)).path == whole


@pytest.mark.parametrize(
    ("changes", "said"), [({"num_parts": 2}, "2 parts and 8"), ({"num_vertices": 9}, "3 parts and 9")]
)
def test_a_manifest_that_disagrees_with_the_book_is_told(
    store: Path, changes: dict[str, int], said: str
) -> None:
    rewrite_manifest(store, **changes)
    message = rf"says {said} vertices, but the book's arrays say 3 and 8: {CURE}"
    with pytest.raises(StoreError, match=message):
        PartitionStore.open(store)


def test_a_manifest_without_the_book_is_told(store: Path) -> None:
    files = json.loads((store / MANIFEST_NAME).read_text())["files"]
    del files["shared/new_to_old.npy"]
    rewrite_manifest(store, files=files)
    with pytest.raises(StoreError, match=r"holds no shared/new_to_old\.npy"):
        PartitionStore.open(store)
