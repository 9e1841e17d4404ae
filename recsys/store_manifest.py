"""The manifest of a prepared log: what the folder holds, and how to tell that it still does."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from windrow.comm.errors import StoreError
from windrow.partition.manifest_file import read_document, write_document

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "CURE",
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "FeatureEntry",
    "LogManifest",
    "SampleOrder",
    "SplitEntry",
    "StoreFile",
    "combined_fingerprint",
    "plain_settings",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
CURE = "run `windrow prepare` again to rebuild the store"

SampleOrder = Literal["log", "session shards", "sessions"]
"""log: as the log has them, or by time where the split is by time. session shards: the same within each file, and each
session in one file. sessions: those of a session next to one another, in order of time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureEntry:
    """One sparse feature of a prepared log."""

    name: str
    """Its name, and that of its column."""
    table: str
    """Table that its ids belong to."""
    rows: int
    """Rows of the table: ids are 0 to rows - 1."""
    multi_hot: bool
    """Whether a sample has a list of ids."""
    weighted: bool
    """Whether the column ``NAME.weights`` has a weight for each id."""
    ids: str
    """How values became ids: vocabulary, hash or rows."""
    counts: Mapping[str, Mapping[str, int]]
    """For each split: "missing" samples without a value; "unseen" ids of values that the vocabulary lacks;
    "truncated" ids cut off by max_length; "ids" all that are stored."""
    repeats_left_out: bool = False
    """Whether a null stands for what the sample before in the row group has: see `windrow.recsys.repeats`."""

    def mean_ids(self, split: str, rows: int) -> float:
        """Ids per sample of a split, where it has `rows` samples."""
        return self.counts[split]["ids"] / rows if rows else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFile:
    """One file of samples."""

    name: str
    """Path relative to the store, with forward slashes."""
    rows: int
    """Its samples."""
    num_bytes: int
    """Its size."""
    sha256: str
    """Its checksum, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitEntry:
    """One split."""

    rows: int
    """Samples."""
    positives: int
    """Samples of label 1."""
    files: tuple[StoreFile, ...]
    """Files, whose samples follow one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogManifest:
    """What a prepared log holds."""

    windrow_version: str
    """Version of windrow that wrote it."""
    dense: tuple[str, ...]
    """Names of the dense values, in the order of the column ``dense``."""
    dense_missing: Mapping[str, int]
    """Missing values of each, over all splits."""
    has_time: bool
    """Whether there is a column ``time``."""
    has_session: bool
    """Whether there is a column ``session``."""
    features: tuple[FeatureEntry, ...]
    """Sparse features in the order of the recipe."""
    splits: Mapping[str, SplitEntry]
    """Splits by name; those without samples are left out."""
    vocabularies: tuple[StoreFile, ...]
    """Files of the vocabularies, one for each table that has one."""
    origin: Mapping[str, Any]
    """The settings that it was made with."""
    fingerprint: str
    """SHA-256 over the mapped samples and their vocabularies: equal only for equal data and mapping."""
    order: SampleOrder = "log"
    """In which order the samples of a split are; manifests written before there was a choice do not say."""

    def write(self, path: Path) -> None:
        """Write the manifest as JSON.

        Args:
            path: the file.
        """
        write_document(path, asdict(self), format_version=FORMAT_VERSION)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a manifest.

        Args:
            path: the file.

        Raises:
            StoreError: there is none, it is no JSON, of another version, or lacks a field.
        """
        document = read_document(path, format_version=FORMAT_VERSION, store="prepared log", cure=CURE)
        try:
            features = tuple(FeatureEntry(**entry) for entry in document.pop("features"))
            splits = {
                name: SplitEntry(**{**entry, "files": _files(entry["files"])})
                for name, entry in document.pop("splits").items()
            }
            vocabularies = _files(document.pop("vocabularies"))
            dense = tuple(document.pop("dense"))
            if document.get("order", "log") not in get_args(SampleOrder):
                raise StoreError(
                    f"{path} has samples in order {document['order']!r}, which is unknown: {CURE}"
                )
            return cls(features=features, splits=splits, vocabularies=vocabularies, dense=dense, **document)
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{path} lacks a field or has one too many ({error}): {CURE}") from error

    def all_files(self) -> tuple[StoreFile, ...]:
        """Every file beside the manifest."""
        return (*(file for split in self.splits.values() for file in split.files), *self.vocabularies)


def combined_fingerprint(files: tuple[StoreFile, ...]) -> str:
    """SHA-256 over names and checksums of files.

    Args:
        files: in any order.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name} {file.sha256}\n".encode())
    return digest.hexdigest()


def plain_settings(settings: "DataclassInstance") -> dict[str, Any]:
    """Settings as `LogManifest.origin` holds them, to write and to compare: lists for tuples, text for paths."""
    plain: dict[str, Any] = _plain(asdict(settings))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _files(entries: Any) -> tuple[StoreFile, ...]:
    return tuple(StoreFile(**entry) for entry in entries)
