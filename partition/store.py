"""The partition store, written and opened: one folder for each graph.

    STORE/manifest.json           format version, counts, options, quality, metadata; size and SHA-256 of each file
    STORE/shared/NAME.npy         arrays that every rank maps whole: part_offsets, new_to_old, old_to_new (the
                                  book), and the writer's own, such as indptr, indices, labels, train_ids
    STORE/parts/00000/NAME.npy    rows of the sharded arrays that part 0 owns, such as features

One process writes it, by `write_store`, or the ranks of a world do, each some rows of every array: `StoreOnRanks`.
Arrays are memory-mapped read-only, so ranks on one machine share one copy of the shared arrays.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, StoreError
from windrow.comm.numpy_files import map_array
from windrow.partition.atomic_writes import atomic_folder
from windrow.partition.book import PartitionBook
from windrow.partition.manifest import CURE, MANIFEST_NAME, FileEntry, Manifest, check_file, describe_file
from windrow.partition.options import PartitionOptions
from windrow.partition.quality import PartitionQuality

if TYPE_CHECKING:
    from windrow.comm.world import World

__all__ = ["BOOK_ARRAYS", "PartitionStore", "StoreOnRanks", "part_folder", "write_store"]

BOOK_ARRAYS = ("part_offsets", "new_to_old", "old_to_new")
CHUNK_BYTES = 1 << 24
STAGE = "writing the store"
NAME = re.compile(r"[a-z][a-z0-9_]*")

Array = npt.NDArray[Any]
Progress = Callable[[str, float], None]


def write_store(
    path: Path,
    book: PartitionBook,
    *,
    shared: Mapping[str, Array],
    sharded: Mapping[str, Array | Iterable[Array]],
    metadata: dict[str, Any],
    quality: PartitionQuality | None = None,
    options: PartitionOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a store atomically: afterwards `path` holds all of it, or, after an error, what it held before.

    Args:
        path: the store's folder.
        book: who owns which vertex; it is stored too.
        shared: arrays of at least one axis that every rank maps whole.
        sharded: arrays [N, ...] in the order of the NEW ids, or iterators over successive chunks of their rows; each
            part gets its rows. Names: lower-case letters, digits, underscores.
        metadata: JSON-ready values to find again in `PartitionStore.metadata`.
        quality: the report on the partition.
        options: how the partition was made.
        overwrite: replace an existing store.
        progress: called with a stage name and the share done, 0 to 1.

    Raises:
        StoreError: the folder exists and `overwrite` is false.
        DataError: a name is taken or malformed, an array holds objects, or rows of a sharded array are missing.
        OSError: the disk is full, or the like.

    Memory: one chunk (16 MiB, or as large as the iterator's chunks) beyond the arguments.
    """
    _check_names(shared, sharded)
    report = progress or (lambda *_: None)
    whole = dict(zip(BOOK_ARRAYS, (book.offsets, book.new_to_old, book.old_to_new), strict=True)) | dict(shared)
    steps = len(whole) + len(sharded) + 1
    parts = range(book.num_parts)
    with atomic_folder(Path(path), overwrite=overwrite) as folder:
        for inside in ("shared", *map(part_folder, parts)):
            (folder / inside).mkdir(parents=True)
        for step, (name, rows) in enumerate([*whole.items(), *sharded.items()]):
            report(f"writing {name}", step / steps)
            if isinstance(rows, np.ndarray) and rows.ndim == 0:
                raise DataError(f'array "{name}" has no axis: put single values into the metadata')
            sizes = {part_folder(part): book.part_size(part) for part in parts}
            _write_rows(folder, name, {"shared": len(whole[name])} if name in whole else sizes, rows)
        report("checksums", (steps - 1) / steps)
        files = {name: describe_file(folder / name) for name in _array_files(folder)}
        _write_manifest(folder, files, metadata, quality, options)
    report("done", 1.0)


class StoreOnRanks:
    """A store that the ranks of a world write together, in a folder that all of them see. A context manager.

    It appears whole, when the block ends on all ranks, or not at all. Each method says who must call it; the arrays are
    those of `write_store`, those of the book among them.

    Args:
        world: its ranks all make one, and enter it.
        path: the store's folder; must agree.
        overwrite: replace an existing store; must agree.

    Raises:
        StoreError: the folder exists and `overwrite` is false.
    """

    def __init__(self, world: "World", path: Path, *, overwrite: bool = False) -> None:
        self._world, self._path, self._overwrite = world, Path(path), overwrite
        self._end = ExitStack()
        self._folder = Path()

    def __enter__(self) -> Self:
        def make() -> Path:
            folder = self._end.enter_context(atomic_folder(self._path, overwrite=self._overwrite))
            (folder / "shared").mkdir()
            return folder

        self._folder = self._world.from_rank_0(make, stage=STAGE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._world.barrier(stage=STAGE)
        self._end.__exit__(kind, error, trace)
        if kind is None:
            self._world.barrier(stage=STAGE)

    def make_shared(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Make the file of an array that every rank maps whole, for `fill_shared`. Collective; arguments must agree."""
        if self._world.rank == 0:
            _make_array(self._folder / "shared", name, dtype, shape)
        self._world.barrier(stage=STAGE)

    def fill_shared(self, name: str, start: int, rows: Array) -> None:
        """Write some rows of an array that was made, from row `start` on; any rank, at any time."""
        _fill_array(self._folder / "shared", name, start, rows)

    def write_shared(self, name: str, rows: Array) -> None:
        """Write an array that every rank maps whole: rows of rank 0, then those of rank 1, and so on. Collective."""
        counts = self._world.all_gather_object(len(rows), stage=STAGE)
        self.make_shared(name, rows.dtype, (sum(counts), *rows.shape[1:]))
        self.fill_shared(name, sum(counts[: self._world.rank]), rows)

    def make_part(self, part: int) -> None:
        """Make the folder of a part; one rank."""
        (self._folder / part_folder(part)).mkdir(parents=True)

    def make_part_array(self, part: int, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Make the file of a part's rows of a sharded array; the rank that made its folder."""
        _make_array(self._folder / part_folder(part), name, dtype, shape)

    def fill_part_array(self, part: int, name: str, start: int, rows: Array) -> None:
        """Write some of these rows, from `start` of the part on; the same rank."""
        _fill_array(self._folder / part_folder(part), name, start, rows)

    def finish(self, *, metadata: dict[str, Any], quality: PartitionQuality, options: PartitionOptions) -> None:
        """Write the manifest, after all arrays, of which each rank reads back some. Collective, of equal arguments."""
        self._world.barrier(stage=STAGE)
        rank, size = self._world.rank, self._world.size
        names = self._world.broadcast_object(_array_files(self._folder), root=0, stage=STAGE)
        mine = {name: describe_file(self._folder / name) for name in names[rank::size]}
        found = self._world.all_gather_object(mine, stage=STAGE)
        if rank == 0:
            files = {name: entry for some in found for name, entry in some.items()}
            _write_manifest(self._folder, dict(sorted(files.items())), metadata, quality, options)


def _make_array(folder: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Make the file of an array whose rows are not known yet."""
    with (folder / f"{name}.npy").open("xb") as file:
        _write_header(file, name, dtype, shape)
        file.truncate(file.tell() + math.prod(shape) * dtype.itemsize)


def _fill_array(folder: Path, name: str, start: int, rows: Array) -> None:
    with (folder / f"{name}.npy").open("r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(start * math.prod(rows.shape[1:]) * rows.itemsize, os.SEEK_CUR)
        for chunk in _chunks(rows):
            file.write(np.ascontiguousarray(chunk).data)


def _array_files(folder: Path) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.npy"))]


def _write_manifest(
    folder: Path,
    files: Mapping[str, FileEntry],
    metadata: dict[str, Any],
    quality: PartitionQuality | None,
    options: PartitionOptions | None,
) -> None:
    lengths = {name: files[f"shared/{name}.npy"].shape[0] for name in BOOK_ARRAYS}
    Manifest(
        windrow_version=version("windrow"),
        num_vertices=lengths["new_to_old"],
        num_edges=files["shared/indices.npy"].shape[0] if "shared/indices.npy" in files else 0,
        num_parts=lengths["part_offsets"] - 1,
        options=asdict(options) if options is not None else {},
        quality=asdict(quality) if quality is not None else None,
        metadata=metadata,
        files=dict(files),
    ).write(folder / MANIFEST_NAME)


def part_folder(part: int) -> str:
    """Folder of one part, relative to the store."""
    return f"parts/{part:05d}"


def _check_names(shared: Mapping[str, object], sharded: Mapping[str, object]) -> None:
    names = [*shared, *sharded]
    for name in names:
        if not NAME.fullmatch(name):
            raise DataError(f'array name "{name}": use lower-case letters, digits and underscores')
        if name in BOOK_ARRAYS or names.count(name) > 1:
            raise DataError(f'array name "{name}" is taken: choose another')


def _write_rows(folder: Path, name: str, sizes: Mapping[str, int], rows: Array | Iterable[Array]) -> None:
    """Spread rows over a file in each of some folders, by the numbers of rows that these want."""
    chunks = _chunks(rows) if isinstance(rows, np.ndarray) else iter(rows)
    first, total, written = next(chunks, None), sum(sizes.values()), 0
    if first is None:
        raise DataError(f'sharded array "{name}" has no rows, expected {total}')
    pending = first
    for inside, size in sizes.items():
        stop = written + size
        with (folder / inside / f"{name}.npy").open("xb") as file:
            _write_header(file, name, first.dtype, (size, *first.shape[1:]))
            while written < stop:
                if not len(pending):
                    pending = _next_chunk(name, chunks, first, f"ends at row {written} of {total}")
                taken, pending = pending[: stop - written], pending[stop - written :]
                file.write(np.ascontiguousarray(taken).data)
                written += len(taken)
    surplus = len(pending) + sum(map(len, chunks))
    if surplus:
        raise DataError(f'sharded array "{name}" has {surplus} rows more than the {total} vertices')


def _next_chunk(name: str, chunks: Iterator[Array], first: Array, missing: str) -> Array:
    chunk = next(chunks, None)
    if chunk is None:
        raise DataError(f'sharded array "{name}" {missing}')
    if (chunk.dtype, chunk.shape[1:]) != (first.dtype, first.shape[1:]):
        raise DataError(
            f'sharded array "{name}": a chunk holds {chunk.dtype} rows of shape {chunk.shape[1:]}, '
            f"the first held {first.dtype} rows of shape {first.shape[1:]}; give all chunks alike"
        )
    return chunk


def _chunks(array: Array) -> Iterator[Array]:
    row_bytes = max(array.nbytes // max(len(array), 1), 1)
    rows = max(CHUNK_BYTES // row_bytes, 1)
    for start in range(0, max(len(array), 1), rows):
        yield array[start : start + rows]


def _write_header(file: BinaryIO, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if dtype.hasobject:
        raise DataError(f'array "{name}" holds Python objects: convert it to numbers')
    descriptor = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descriptor, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartitionStore:
    """A store on disk, opened for reading."""

    path: Path
    """The store's folder."""
    manifest: Manifest
    """What it should hold."""
    book: PartitionBook
    """Who owns which vertex."""

    @classmethod
    def open(cls, path: Path, *, expect_parts: int | None = None, verify: bool = True) -> Self:
        """Open a store and check that it is whole, and has `expect_parts` parts where that is given.

        With `verify` every file is read and its checksum compared. Ranks of one run may pass False and call
        `PartitionStore.verify` for their own part, so that each file is read once.

        Raises:
            StoreError: no store, another version, another number of parts, a file missing, truncated or altered.
        """
        path = Path(path)
        manifest = Manifest.read(path / MANIFEST_NAME)
        if expect_parts is not None and manifest.num_parts != expect_parts:
            raise StoreError(
                f"{path} holds {manifest.num_parts} parts, but the run has {expect_parts} ranks: run "
                f"`windrow partition` again with num_parts = {expect_parts}, or start {manifest.num_parts} ranks"
            )
        for name, entry in manifest.files.items():
            check_file(path / name, num_bytes=entry.num_bytes, cure=CURE)
        offsets, new_to_old, old_to_new = (_load(path, manifest, f"shared/{name}.npy") for name in BOOK_ARRAYS)
        counts = (len(offsets) - 1, len(new_to_old), len(old_to_new))
        if counts != (manifest.num_parts, manifest.num_vertices, manifest.num_vertices):
            raise StoreError(
                f"{path / MANIFEST_NAME} says {manifest.num_parts} parts and {manifest.num_vertices} vertices, "
                f"but the book's arrays say {counts[0]} and {counts[1]}: {CURE}"
            )
        book = PartitionBook(offsets=offsets, new_to_old=new_to_old, old_to_new=old_to_new)
        store = cls(path=path, manifest=manifest, book=book)
        if verify:
            store.verify()
        return store

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer passed as metadata."""
        return self.manifest.metadata

    def shared(self, name: str) -> Array:
        """Map a shared array, by its name in `write_store`, read-only; StoreError where there is none, or damaged."""
        return _load(self.path, self.manifest, f"shared/{name}.npy")

    def sharded(self, name: str, part: int) -> Array:
        """Map one part's rows of a sharded array, by its name in `write_store`.

        Returns:
            [part_size, ...], row i belongs to new id ``book.offsets[part] + i``; read-only.

        Raises:
            StoreError: the store has no such array or part, or its file is damaged.
        """
        return _load(self.path, self.manifest, f"{part_folder(part)}/{name}.npy")

    def verify(self, *, part: int | None = None, shared: bool = True) -> None:
        """Read the files of one part, None for all, and the shared ones, and compare their checksums.

        Raises:
            StoreError: a file was altered; the message holds the checksum expected and found.
        """
        parts = "parts/" if part is None else f"{part_folder(part)}/"
        for name, entry in self.manifest.files.items():
            if name.startswith(parts) or (shared and name.startswith("shared/")):
                check_file(self.path / name, num_bytes=entry.num_bytes, sha256=entry.sha256, cure=CURE)


def _load(path: Path, manifest: Manifest, name: str) -> Array:
    entry = manifest.files.get(name)
    if entry is None:
        raise StoreError(f"{path} holds no {name}; it holds {', '.join(sorted(manifest.files))}")
    check_file(path / name, num_bytes=entry.num_bytes, cure=CURE)
    try:
        array: Array = map_array(path / name)
    except ValueError as error:
        raise StoreError(f"{path / name} is no array file ({error}): {CURE}") from error
    if array.dtype.str != entry.dtype or array.shape != entry.shape:
        raise StoreError(
            f"{path / name} holds {array.dtype.str} {array.shape}, expected {entry.dtype} {entry.shape}: {CURE}"
        )
    return array
