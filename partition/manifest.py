"""The manifest of a store: a JSON document that tells what the folder holds, and how to tell that it still does.

It is written with its format version, and refused when it is not that. `write_document` and `read_document` are for the
manifest of any store, `Manifest` is that of a partition store.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import StoreError
from windrow.comm.numpy_files import map_array

__all__ = [
    "CURE",
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "FileEntry",
    "Manifest",
    "check_file",
    "checksum",
    "describe_file",
    "read_document",
    "write_document",
]


def write_document(path: Path, document: Mapping[str, Any], *, format_version: int) -> None:
    """Write a document, what JSON can hold without NaN, with its format version first."""
    versioned = {"format_version": format_version, **document}
    path.write_text(json.dumps(versioned, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_document(path: Path, *, format_version: int, store: str, cure: str) -> dict[str, Any]:
    """Read a document, check what it is, and give it without its version.

    `store` says what the folder around it should be, "partition store", and `cure` what to do about it, for messages.

    Raises:
        StoreError: there is none, it is no JSON object, or of another version than `format_version`.
    """
    if not path.is_file():
        raise StoreError(f"{path} is missing, so {path.parent} is no {store}: {cure}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path} is not JSON ({error}): {cure}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{path} holds a {type(document).__name__}, expected a JSON object: {cure}")
    version = document.pop("format_version", None)
    if version != format_version:
        newer = isinstance(version, int) and version > format_version
        raise StoreError(
            f"{path} has format version {version}, this windrow reads {format_version}: "
            f"{f'use a newer windrow, or {cure}' if newer else cure}"
        )
    return document


FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
CURE = "run `windrow partition` again to rebuild the store"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One array file."""

    dtype: str
    """NumPy's type string, for example "<f4"."""
    shape: tuple[int, ...]
    """Shape of the array."""
    num_bytes: int
    """Size of the file."""
    sha256: str
    """Checksum of the file, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a store holds."""

    windrow_version: str
    """Version of windrow that wrote the store."""
    num_vertices: int
    """N."""
    num_edges: int
    """Stored edges; 0 when the store has no array named "indices"."""
    num_parts: int
    """P."""
    options: dict[str, Any]
    """How the graph was split: the fields of `PartitionOptions`."""
    quality: dict[str, Any] | None
    """The fields of `PartitionQuality`, or None."""
    metadata: dict[str, Any]
    """Whatever the writer wants to find again: task, number of classes, split, fingerprint of the source."""
    files: dict[str, FileEntry]
    """Entries by path relative to the store, with forward slashes."""

    def write(self, path: Path) -> None:
        """Write the manifest as JSON."""
        write_document(path, asdict(self), format_version=FORMAT_VERSION)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a manifest.

        Raises:
            StoreError: there is none, it is no JSON, of another version, or lacks a field.
        """
        document = read_document(path, format_version=FORMAT_VERSION, store="partition store", cure=CURE)
        try:
            files = {name: FileEntry(**{**f, "shape": tuple(f["shape"])}) for name, f in document.pop("files").items()}
            return cls(files=files, **document)
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{path} lacks a field or has one too many ({error}): {CURE}") from error


def checksum(path: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, *, num_bytes: int, sha256: str = "", cure: str) -> None:
    """Refuse a file that is not what a manifest says; its checksum, for which it is read, only where that is given.

    Raises:
        StoreError: it is missing, or its size or its checksum is another one.
    """
    if not path.is_file():
        raise StoreError(f"{path} is missing: {cure}")
    size = path.stat().st_size
    if size != num_bytes:
        raise StoreError(f"{path} has {size} bytes, expected {num_bytes}: {cure}")
    if sha256 and (found := checksum(path)) != sha256:
        raise StoreError(f"{path} was altered: SHA-256 {found}, expected {sha256}; {cure}")


def describe_file(path: Path) -> FileEntry:
    """Make the entry of a ``.npy`` file that was just written; the checksum is of what can be read back."""
    array = map_array(path)
    return FileEntry(dtype=array.dtype.str, shape=array.shape, num_bytes=path.stat().st_size, sha256=checksum(path))
