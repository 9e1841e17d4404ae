"""Write a store: what is refused, and what a failing writer leaves behind."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import DataError, StoreError
from windrow.partition import store as store_writer
from windrow.partition.book import PartitionBook
from windrow.partition.manifest import Manifest
from windrow.partition.store import BOOK_ARRAYS, PartitionStore, part_folder, write_store

BOOK = PartitionBook.from_assignment(np.array([1, 0, 1, 0, 0, 1, 2]), 3)
FEATURES = np.arange(14, dtype=np.float32).reshape(7, 2)


def write(path: Path, *, book: PartitionBook = BOOK, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "shared": {"indptr": np.arange(8), "indices": np.arange(7, dtype=np.int32)},
        "sharded": {"features": FEATURES, "labels": np.arange(7)},
        "metadata": {"task": "single-label"},
    }
    write_store(path, book, **{**arguments, **changes})


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_folder_holds_plain_array_files(tmp_path: Path) -> None:
    write(tmp_path / "store")
    files = sorted(f.relative_to(tmp_path / "store").as_posix() for f in tmp_path.rglob("*") if f.is_file())
    shared = [f"shared/{name}.npy" for name in sorted([*BOOK_ARRAYS, "indptr", "indices"])]
    parts = [f"{part_folder(part)}/{name}.npy" for part in range(3) for name in ("features", "labels")]
    assert files == ["manifest.json", *parts, *shared]
    for part in range(3):
        start, stop = BOOK.part_range(part)
        found = np.load(tmp_path / "store" / part_folder(part) / "features.npy")
        assert found.tolist() == FEATURES[start:stop].tolist()
    manifest = Manifest.read(tmp_path / "store" / "manifest.json")
    assert (manifest.num_vertices, manifest.num_edges, manifest.num_parts) == (7, 7, 3)
    assert sorted(manifest.files) == sorted(set(files) - {"manifest.json"})


def chunks(array: np.ndarray, sizes: Sequence[int]) -> Iterator[np.ndarray]:
    start = 0
    for size in sizes:
        yield array[start : start + size]
        start += size
    yield array[start:]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.integers(0, 9), max_size=8),
    st.sampled_from([(), (2,), (0,), (2, 3)]),
    st.sampled_from(["<f4", ">f4", "<f2", "<i8", "|b1", "|u1"]),
    st.integers(1, 64),
)
def test_any_chunks_give_the_parts_their_rows(
    assignment: list[int], sizes: list[int], row_shape: tuple[int, ...], dtype: str, chunk_bytes: int
) -> None:
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


def test_progress_rises_to_one(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    write(tmp_path / "store", progress=lambda stage, share: told.append((stage, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert told[0] == ("writing part_offsets", 0.0)
    assert told[-1] == ("done", 1.0)


@pytest.mark.parametrize("name", ["", "Features", "a-b", "../a", "a/b", "1a", "_a", "a.npy", "a\n"])
@pytest.mark.parametrize("kind", ["shared", "sharded"])
def test_a_malformed_name_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    message = f'array name "{name}": use lower-case letters, digits and underscores'
    with pytest.raises(DataError, match=re.escape(message)):
        write(tmp_path / "store", **{kind: {name: np.arange(7)}})
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", [*BOOK_ARRAYS, "indices"])
def test_a_name_that_is_taken_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f'array name "{name}" is taken: choose another'):
        write(tmp_path / "store", sharded={name: np.arange(7)})


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
def test_bad_arrays_are_refused_and_nothing_is_left(
    tmp_path: Path, existed: bool, kind: str, array: Any, message: str
) -> None:
    path = tmp_path / "store"
    if existed:
        write(path, metadata={"version": "old"})
    with pytest.raises(DataError, match=re.escape(message)):
        write(path, **{kind: {"a": array}}, overwrite=True)
    check_untouched(path, existed=existed)


def check_untouched(path: Path, *, existed: bool) -> None:
    """The old store or none, and no temporary folder."""
    assert names(path.parent) == ([path.name] if existed else [])
    if existed:
        assert PartitionStore.open(path).metadata == {"version": "old"}


def test_an_existing_store_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    with pytest.raises(StoreError, match="already exists: choose another folder or overwrite it"):
        write(path)
    check_untouched(path, existed=True)
    write(path, metadata={"version": "new"}, overwrite=True)
    assert PartitionStore.open(path).metadata == {"version": "new"}
    assert names(tmp_path) == ["store"]


@pytest.mark.parametrize("value", [float("nan"), object(), np.int64(3)])
def test_metadata_that_is_not_json_leaves_what_was_there(tmp_path: Path, value: object) -> None:
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    with pytest.raises((TypeError, ValueError), match="JSON"):
        write(path, metadata={"value": value}, overwrite=True)
    check_untouched(path, existed=True)


def disk_full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("successes", [0, 2, 4, 6, 9, 10])
def test_a_full_disk_at_any_file_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, successes: int
) -> None:
    path = tmp_path / "store"
    if existed:
        write(path, metadata={"version": "old"})
    write_header, calls = store_writer._write_header, []

    def fails_in_time(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > successes:
            disk_full()
        write_header(*arguments)

    monkeypatch.setattr(store_writer, "_write_header", fails_in_time)
    with pytest.raises(OSError, match="No space left on device"):
        write(path, overwrite=True)
    check_untouched(path, existed=existed)


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize(
    ("place", "step"), [(store_writer, "describe_file"), (Manifest, "write"), (os, "fsync")]
)
def test_a_full_disk_at_the_end_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool, place: object, step: str
) -> None:
    path = tmp_path / "store"
    if existed:
        write(path, metadata={"version": "old"})
    monkeypatch.setattr(place, step, disk_full)
    with pytest.raises(OSError, match="No space left on device"):
        write(path, overwrite=True)
    check_untouched(path, existed=existed)


def test_an_iterator_that_fails_midway_leaves_what_was_there(tmp_path: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield FEATURES[:4]
        disk_full()

    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    with pytest.raises(OSError, match="No space left on device"):
        write(path, sharded={"features": broken()}, overwrite=True)
    check_untouched(path, existed=True)


def test_a_write_that_the_operating_system_cuts_short_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, sharded={"features": np.ones((7, 30_000))}, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    check_untouched(path, existed=True)


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from windrow.partition.book import PartitionBook
from windrow.partition.store import write_store

def rows():
    yield np.zeros((4, 2), np.float32)
    os.kill(os.getpid(), signal.SIGKILL)

book = PartitionBook.from_assignment(np.array([1, 0, 1, 0, 0, 1, 2]), 3)
write_store(Path(sys.argv[1]), book, shared={}, sharded={"features": rows()}, metadata={}, overwrite=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_writer_leaves_the_old_store_and_the_next_one_clears_up(tmp_path: Path) -> None:
    path = tmp_path / "store"
    write(path, metadata={"version": "old"})
    finished = subprocess.run(
        [sys.executable, "-P", "-c", KILLED_WRITER, str(path)], cwd=tmp_path, check=False
    )
    assert finished.returncode == -signal.SIGKILL
    (leftover,) = set(names(tmp_path)) - {"store"}
    assert leftover.startswith("store.tmp-")
    assert PartitionStore.open(path).metadata == {"version": "old"}
    with pytest.raises(StoreError, match="is no partition store"):
        PartitionStore.open(tmp_path / leftover)
    write(path, metadata={"version": "new"}, overwrite=True)
    assert names(tmp_path) == ["store"]
    assert PartitionStore.open(path).metadata == {"version": "new"}
