"""A store: written, opened, refused where it is damaged, and whole after any failure."""

import errno
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

from windrow.comm.errors import DataError, StoreError
from windrow.comm.loopback import Loopback
from windrow.partition import store as store_writer
from windrow.partition.book import PartitionBook
from windrow.partition.manifest import CURE, MANIFEST_NAME, Manifest
from windrow.partition.options import PartitionOptions
from windrow.partition.quality import measure_quality
from windrow.partition.store import BOOK_ARRAYS, PartitionStore, StoreOnRanks, part_folder, write_store

ASSIGNMENT = np.array([1, 0, 1, 0, 0, 1, 2, 2], np.int32)
INDPTR, INDICES = np.arange(9), np.roll(np.arange(8, dtype=np.int32), 1)
FEATURES = np.arange(16, dtype=np.float32).reshape(8, 2)
BOOK = PartitionBook.from_assignment(ASSIGNMENT, 3)
OPTIONS = PartitionOptions(num_parts=3, method="random")
QUALITY = measure_quality(INDPTR, INDICES, ASSIGNMENT, 3, train_ids=np.array([0, 1, 6]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
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
def store(whole, tmp_path):
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "store")


def test_round_trip(whole):
    store = PartitionStore.open(str(whole), expect_parts=3)
    assert store.path == whole
    assert store.metadata == {"task": "binary", "classes": ["a", "b"]}
    assert store.manifest.quality == json.loads(json.dumps(asdict(QUALITY)))
    assert store.manifest.options == {**asdict(OPTIONS), "balance": list(OPTIONS.balance)}
    for name in ("offsets", "new_to_old", "old_to_new"):
        assert getattr(store.book, name).tolist() == getattr(BOOK, name).tolist()
        assert getattr(store.book, name).dtype == np.int64
    assert store.book.owner(store.book.old_to_new).tolist() == ASSIGNMENT.tolist()
    assert store.shared("indices").tolist() == INDICES.tolist()
    assert store.shared("nothing").shape == (0, 2)
    rows = np.concatenate([store.sharded("features", part) for part in range(3)])
    assert store.book.restore(rows).tolist() == FEATURES.tolist()
    for part in range(3):
        ids = store.book.to_original(np.arange(*store.book.part_range(part)))
        assert store.sharded("features", part).tolist() == FEATURES[ids].tolist()


def test_arrays_are_mapped_read_only(whole):
    store = PartitionStore.open(whole)
    for array in (store.shared("indices"), store.sharded("features", 1), store.book.new_to_old):
        assert isinstance(array, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_another_number_of_ranks_is_refused(whole):
    message = (
        f"{whole} holds 3 parts, but the run has 4 ranks: run `windrow partition` again with num_parts = 4, "
        "or start 3 ranks"
    )
    with pytest.raises(StoreError, match=re.escape(message)):
        PartitionStore.open(whole, expect_parts=4)


def test_arrays_that_are_not_there_are_named_with_those_that_are(whole):
    store = PartitionStore.open(whole)
    with pytest.raises(StoreError, match=r"holds no shared/scores\.npy; it holds parts/00000/.*shared/"):
        store.shared("scores")
    with pytest.raises(StoreError, match=r"holds no parts/00003/features\.npy"):
        store.sharded("features", 3)
    with pytest.raises(StoreError, match=r"holds no parts/00000/indices\.npy"):
        store.sharded("indices", 0)


FILES = [*(f"shared/{name}.npy" for name in (*BOOK_ARRAYS, "indices", "nothing")), f"{part_folder(1)}/features.npy"]
VERIFY = pytest.mark.parametrize("verify", [True, False])


@VERIFY
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store, name, verify):
    (store / name).unlink()
    with pytest.raises(StoreError, match=re.escape(f"{store / name} is missing: {CURE}")):
        PartitionStore.open(store, verify=verify)


@VERIFY
@pytest.mark.parametrize("change", [-1, -40, None, 1])
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_longer_file_is_named(store, name, change, verify):
    content = (store / name).read_bytes()
    found = 0 if change is None else len(content) + change
    (store / name).write_bytes((content + b"\0")[:found])
    message = f"{store / name} has {found} bytes, expected {len(content)}: {CURE}"
    with pytest.raises(StoreError, match=re.escape(message)):
        PartitionStore.open(store, verify=verify)


# NumPy warns of some headers that it can still read; the checksum tells that they were altered.
@settings(max_examples=60)
@given(st.sampled_from(FILES), st.data())
def test_one_altered_byte_anywhere_is_found(whole, name, data):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Reading `.npy` or `.npz` file|Data type alias 'a'")
        store = shutil.copytree(whole, Path(folder) / "store")
        content = bytearray((store / name).read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        (store / name).write_bytes(content)
        with pytest.raises(StoreError, match=f"{re.escape(str(store / name))} .*{CURE}"):
            PartitionStore.open(store)


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize(("position", "value"), [(0, 0), (6, 9), (8, 1), (8, 255), (21, 44), (26, 66), (40, 0)])
def test_a_broken_header_is_told_without_checksums(store, name, position, value):
    content = bytearray((store / name).read_bytes())
    content[position] = value
    (store / name).write_bytes(content)
    with pytest.raises(StoreError, match=rf"{re.escape(str(store / name))} is no array file \(.*\): {CURE}"):
        PartitionStore.open(store, verify=False)


def test_an_altered_value_is_told_with_both_checksums(store):
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


def test_shared_files_can_be_left_out_of_the_check(store):
    path = store / "shared" / "indices.npy"
    np.save(path, INDICES[::-1])
    opened = PartitionStore.open(store, verify=False)
    opened.verify(shared=False)
    with pytest.raises(StoreError, match="was altered"):
        opened.verify(part=0)


def test_an_array_of_another_type_or_shape_is_told(store):
    path = store / "shared" / "indices.npy"
    np.save(path, np.zeros(8, np.float32))
    opened = PartitionStore.open(store, verify=False)
    with pytest.raises(StoreError, match=rf"holds <f4 \(8,\), expected <i4 \(8,\): {CURE}"):
        opened.shared("indices")
    np.save(path, np.zeros((4, 2), np.int32))
    with pytest.raises(StoreError, match=r"holds <i4 \(4, 2\), expected <i4 \(8,\)"):
        opened.shared("indices")
    path.unlink()
    for read in (lambda: opened.shared("indices"), opened.verify):
        with pytest.raises(StoreError, match="is missing"):
            read()


def rewrite_manifest(store, **changes):
    path = store / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "said"), [({"num_parts": 2}, "2 parts and 8"), ({"num_vertices": 9}, "3 parts and 9")]
)
def test_a_manifest_that_disagrees_with_the_book_is_told(store, changes, said):
    rewrite_manifest(store, **changes)
    message = rf"says {said} vertices, but the book's arrays say 3 and 8: {CURE}"
    with pytest.raises(StoreError, match=message):
        PartitionStore.open(store)


def test_a_manifest_without_the_book_is_told(store):
    files = json.loads((store / MANIFEST_NAME).read_text())["files"]
    del files["shared/new_to_old.npy"]
    rewrite_manifest(store, files=files)
    with pytest.raises(StoreError, match=r"holds no shared/new_to_old\.npy"):
        PartitionStore.open(store)


SMALL_BOOK = PartitionBook.from_assignment(np.array([1, 0, 1, 0, 0, 1, 2]), 3)
SMALL_FEATURES = np.arange(14, dtype=np.float32).reshape(7, 2)


def write(path, *, book=SMALL_BOOK, **changes):
    arguments: dict[str, Any] = {
        "shared": {"indptr": np.arange(8), "indices": np.arange(7, dtype=np.int32)},
        "sharded": {"features": SMALL_FEATURES, "labels": np.arange(7)},
        "metadata": {"task": "single-label"},
    }
    write_store(path, book, **{**arguments, **changes})


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_folder_holds_plain_array_files(tmp_path):
    write(tmp_path / "store")
    files = sorted(f.relative_to(tmp_path / "store").as_posix() for f in tmp_path.rglob("*") if f.is_file())
    shared = [f"shared/{name}.npy" for name in sorted([*BOOK_ARRAYS, "indptr", "indices"])]
    parts = [f"{part_folder(part)}/{name}.npy" for part in range(3) for name in ("features", "labels")]
    assert files == ["manifest.json", *parts, *shared]
    for part in range(3):
        start, stop = SMALL_BOOK.part_range(part)
        found = np.load(tmp_path / "store" / part_folder(part) / "features.npy")
        assert found.tolist() == SMALL_FEATURES[start:stop].tolist()
    manifest = Manifest.read(tmp_path / "store" / "manifest.json")
    assert (manifest.num_vertices, manifest.num_edges, manifest.num_parts) == (7, 7, 3)
    assert sorted(manifest.files) == sorted(set(files) - {"manifest.json"})


def chunks(array, sizes):
    start = 0
    for size in sizes:
        yield array[start : start + size]
        start += size
    yield array[start:]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from([(), (2,), (0,), (2, 3)]),
    st.sampled_from(["<f4", ">f4", "<f2", "<i8", "|b1", "|u1"]),
    st.integers(1, 64),
)
def test_any_chunks_give_the_parts_their_rows(assignment, sizes, row_shape, dtype, chunk_bytes):
    book = PartitionBook.from_assignment(np.array(assignment), 4)
    shape = (len(assignment), *row_shape)
    array = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
    sharded = {"whole": array, "strided": np.repeat(array, 2, axis=0)[::2], "chunked": chunks(array, sizes)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "CHUNK_BYTES", chunk_bytes)
        path = Path(folder) / "store"
        write(path, book=book, shared={"turned": array.T.copy().T}, sharded=sharded)
        shared = np.load(path / "shared" / "turned.npy")
        assert (shared.dtype, shared.shape, shared.tobytes()) == (array.dtype, shape, array.tobytes())
        for part in range(4):
            rows = array[slice(*book.part_range(part))]
            for name in sharded:
                found = np.load(path / part_folder(part) / f"{name}.npy")
                assert (found.dtype, found.shape, found.tobytes()) == (rows.dtype, rows.shape, rows.tobytes())


def test_progress_rises_to_one(tmp_path):
    told: list[tuple[str, float]] = []
    write(tmp_path / "store", progress=lambda stage, share: told.append((stage, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert told[0] == ("writing part_offsets", 0.0)
    assert told[-1] == ("done", 1.0)


MALFORMED = ["", "Features", "a-b", "../a", "a/b", "1a", "_a", "a.npy", "a\n"]


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [(name, kind, ": use lower-case letters, digits") for name in MALFORMED for kind in ("shared", "sharded")]
    + [(name, "sharded", " is taken: choose another") for name in (*BOOK_ARRAYS, "indices")],
)
def test_a_name_that_is_malformed_or_taken_is_refused(tmp_path, kind, name, problem):
    with pytest.raises(DataError, match=re.escape(f'array name "{name}"{problem}')):
        write(tmp_path / "store", **{kind: {name: np.arange(7)}})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("shared", np.array([None, {}]), 'array "a" holds Python objects: convert it to numbers'),
        ("sharded", np.array([None] * 7), 'array "a" holds Python objects: convert it to numbers'),
        ("shared", np.array(3), 'array "a" has no axis: put single values into the metadata'),
        ("sharded", np.array(3), 'array "a" has no axis: put single values into the metadata'),
        ("sharded", np.arange(6), 'sharded array "a" ends at row 6 of 7'),
        ("sharded", np.arange(4), 'sharded array "a" ends at row 4 of 7'),
        ("sharded", np.empty((0, 3)), 'sharded array "a" ends at row 0 of 7'),
        ("sharded", np.arange(9), 'sharded array "a" has 2 rows more than the 7 vertices'),
        ("sharded", [], 'sharded array "a" has no rows, expected 7'),
        ("sharded", [np.arange(3), np.arange(3)], 'sharded array "a" ends at row 6 of 7'),
        ("sharded", [np.arange(7), np.arange(3), np.arange(2)], 'sharded array "a" has 5 rows more than the 7'),
        (
            "sharded",
            [np.ones((3, 2)), np.ones((4, 3))],
            'sharded array "a": a chunk holds float64 rows of shape (3,), the first held float64 rows of shape (2,)',
        ),
        ("sharded", [np.ones(3), np.ones(4, np.float32)], "a chunk holds float32 rows of shape (), the first held"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("existed", [False, True])
def test_bad_arrays_are_refused_and_nothing_is_left(tmp_path, existed, kind, array, message):
    path = tmp_path / "store"
    if existed:
        write(path, metadata={"version": "old"})
    with pytest.raises(DataError, match=re.escape(message)):
        write(path, **{kind: {"a": array}}, overwrite=True)
    check_untouched(path, existed=existed)


def check_untouched(path, *, existed):
    """The old store or none, and no temporary folder."""
    assert names(path.parent) == ([path.name] if existed else [])
    if existed:
        assert PartitionStore.open(path).metadata == {"version": "old"}


def test_an_existing_store_is_kept_unless_told(tmp_path):
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    with pytest.raises(StoreError, match="already exists: choose another folder or overwrite it"):
        write(path)
    check_untouched(path, existed=True)
    write(path, metadata={"version": "new"}, overwrite=True)
    store = PartitionStore.open(path)
    assert (store.metadata, store.manifest.quality, store.manifest.options) == ({"version": "new"}, None, {})


@pytest.mark.parametrize("value", [float("nan"), object(), np.int64(3)])
def test_metadata_that_is_not_json_leaves_what_was_there(tmp_path, value):
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    with pytest.raises((TypeError, ValueError), match="JSON"):
        write(path, metadata={"value": value}, overwrite=True)
    check_untouched(path, existed=True)


def disk_full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("successes", [0, 2, 4, 6, 9, 10])
def test_a_full_disk_at_any_file_leaves_what_was_there(tmp_path, monkeypatch, existed, successes):
    path = tmp_path / "store"
    if existed:
        write(path, metadata={"version": "old"})
    write_header, calls = store_writer._write_header, []

    def fails_in_time(*arguments):
        calls.append(arguments)
        if len(calls) > successes:
            disk_full()
        write_header(*arguments)

    monkeypatch.setattr(store_writer, "_write_header", fails_in_time)
    with pytest.raises(OSError, match="No space left on device"):
        write(path, overwrite=True)
    check_untouched(path, existed=existed)


def test_ranks_leave_nothing_behind_after_an_error(tmp_path):
    def body(world):
        with StoreOnRanks(world, tmp_path / "store") as store:
            store.write_shared("labels", np.arange(world.rank + 1))
            world.barrier(stage="written")
            raise DataError("wrong")

    with pytest.raises(DataError, match="wrong"):
        Loopback.run(2, body)
    assert list(tmp_path.iterdir()) == []
