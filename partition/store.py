"""Open a partition store: one folder for each graph.

    STORE/manifest.json           format version, counts, options, quality, metadata; size and SHA-256 of each file
    STORE/shared/NAME.npy         arrays that every rank maps whole: part_offsets, new_to_old, old_to_new (the
                                  book), and the writer's own, such as indptr, indices, labels, train_ids
    STORE/parts/00000/NAME.npy    rows of the sharded arrays that part 0 owns, such as features

Arrays are memory-mapped read-only, so ranks on one machine share one copy of the shared arrays.
"""

import tokenize
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import StoreError
from windrow.partition.book import PartitionBook
from windrow.partition.manifest import (
    CURE,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    checksum,
)
from windrow.partition.quality import PartitionQuality
from windrow.partition.store_writer import BOOK_ARRAYS, part_folder

__all__ = ["PartitionStore"]

Array = npt.NDArray[Any]

BROKEN_HEADER = (ValueError, TypeError, SyntaxError, EOFError, tokenize.TokenError, zipfile.BadZipFile)
"""What NumPy raises on a header that was altered, depending on the byte."""


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
        """Open a store and check that it is whole.

        Args:
            path: the store's folder.
            expect_parts: number of parts that the caller needs, the world size of a training run.
            verify: also read every file and compare checksums. Ranks of one run may pass False and call
                `PartitionStore.verify` for their own part, so that each file is read once.

        Returns:
            The store.

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
            _check_size(path / name, entry)
        offsets, new_to_old, old_to_new = (
            _load(path, manifest, f"shared/{name}.npy") for name in BOOK_ARRAYS
        )
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

    @property
    def quality(self) -> PartitionQuality | None:
        """The report on the partition, where the writer had one."""
        return None if self.manifest.quality is None else PartitionQuality.from_dict(self.manifest.quality)

    def shared(self, name: str) -> Array:
        """Map a shared array.

        Args:
            name: as given to `write_store`.

        Returns:
            The whole array, read-only.

        Raises:
            StoreError: the store has no such array, or its file is damaged.
        """
        return _load(self.path, self.manifest, f"shared/{name}.npy")

    def sharded(self, name: str, part: int) -> Array:
        """Map one part's rows of a sharded array.

        Args:
            name: as given to `write_store`.
            part: which part.

        Returns:
            [part_size, ...], row i belongs to new id ``book.offsets[part] + i``; read-only.

        Raises:
            StoreError: the store has no such array or part, or its file is damaged.
        """
        return _load(self.path, self.manifest, f"{part_folder(part)}/{name}.npy")

    def verify(self, *, part: int | None = None, shared: bool = True) -> None:
        """Read files and compare their checksums.

        Args:
            part: only this part's files; None for all parts.
            shared: also the shared files.

        Raises:
            StoreError: a file was altered; the message holds the checksum expected and found.
        """
        parts = "parts/" if part is None else f"{part_folder(part)}/"
        for name, entry in self.manifest.files.items():
            if not (name.startswith(parts) or (shared and name.startswith("shared/"))):
                continue
            _check_size(self.path / name, entry)
            found = checksum(self.path / name)
            if found != entry.sha256:
                raise StoreError(
                    f"{self.path / name} was altered: SHA-256 {found}, expected {entry.sha256}; {CURE}"
                )


def _check_size(path: Path, entry: FileEntry) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing: {CURE}")
    found = path.stat().st_size
    if found != entry.num_bytes:
        raise StoreError(f"{path} has {found} bytes, expected {entry.num_bytes}: {CURE}")


def _load(path: Path, manifest: Manifest, name: str) -> Array:
    entry = manifest.files.get(name)
    if entry is None:
        raise StoreError(f"{path} holds no {name}; it holds {', '.join(sorted(manifest.files))}")
    _check_size(path / name, entry)
    try:
        # NumPy cannot map an array without elements.
        mode: Literal["r"] | None = None if 0 in entry.shape else "r"
        array: Array = np.load(path / name, mmap_mode=mode, allow_pickle=False)
    except BROKEN_HEADER as error:
        raise StoreError(f"{path / name} is no array file ({error}): {CURE}") from error
    if array.dtype.str != entry.dtype or array.shape != entry.shape:
        raise StoreError(
            f"{path / name} holds {array.dtype.str} {array.shape}, expected {entry.dtype} {entry.shape}: {CURE}"
        )
    return array
