"""Open a prepared log: one folder, the same for any number of ranks.

    STORE/manifest.json                   format version, features, counts, settings; rows, size and SHA-256 of files
    STORE/train/part-00000.parquet        samples of the training split, in row groups of `ROW_GROUP_ROWS`
    STORE/validation/..., STORE/test/...  the same for the other splits, where there are any
    STORE/vocabularies/TABLE.parquet      id -> value and count, of each table that has a vocabulary

Columns of the samples::

    label             float32                  0 or 1
    dense             fixed_size_list<float>   the dense values, transformed; not there where there are none
    NAME              int64                    id of a feature with one value per sample
    NAME              list<int64>              ids of a multi-hot feature
    NAME.weights      list<float>              their weights, where it has any
                                               of these three, null for what the sample before in the row group has
    time              int64                    as in the log; microseconds since 1970 where the log has dates
    session           int64                    as in the log; a hash of it where the log has text
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from windrow.comm.errors import StoreError
from windrow.partition.manifest import checksum
from windrow.recsys.store_manifest import CURE, MANIFEST_NAME, FeatureEntry, LogManifest, StoreFile

__all__ = [
    "DENSE_COLUMN",
    "LABEL_COLUMN",
    "ROW_GROUP_ROWS",
    "SESSION_COLUMN",
    "TIME_COLUMN",
    "WEIGHTS_SUFFIX",
    "LogSplit",
    "LogStore",
]

LABEL_COLUMN = "label"
DENSE_COLUMN = "dense"
TIME_COLUMN = "time"
SESSION_COLUMN = "session"
WEIGHTS_SUFFIX = ".weights"
ROW_GROUP_ROWS = 1 << 16
"""Samples of a row group: what a reader decodes at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSplit:
    """The samples of one split."""

    name: str
    """train, validation or test."""
    rows: int
    """Samples."""
    positives: int
    """Samples of label 1."""
    files: tuple[Path, ...]
    """Parquet files, whose samples follow one another."""
    file_rows: tuple[int, ...]
    """Samples of each file."""

    @property
    def base_rate(self) -> float:
        """Share of samples of label 1; 0 where there are none."""
        return self.positives / self.rows if self.rows else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogStore:
    """A prepared log on disk, opened for reading."""

    path: Path
    """Its folder."""
    manifest: LogManifest
    """What it should hold."""

    @classmethod
    def open(cls, path: Path, *, verify: bool = False) -> Self:
        """Open a prepared log and check that its files are there in full length.

        Args:
            path: the folder.
            verify: also read every file and compare checksums.

        Raises:
            StoreError: no store, another version, a file missing, truncated or altered.
        """
        path = Path(path)
        store = cls(path=path, manifest=LogManifest.read(path / MANIFEST_NAME))
        for file in store.manifest.all_files():
            _check_size(path / file.name, file)
        if verify:
            store.verify()
        return store

    @property
    def dense(self) -> tuple[str, ...]:
        """Names of the dense values."""
        return self.manifest.dense

    @property
    def features(self) -> tuple[FeatureEntry, ...]:
        """The sparse features in their order."""
        return self.manifest.features

    @property
    def fingerprint(self) -> str:
        """Equal for equal samples and vocabularies."""
        return self.manifest.fingerprint

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that there are."""
        return tuple(self.manifest.splits)

    def split(self, name: str) -> LogSplit:
        """One split.

        Args:
            name: train, validation or test.

        Raises:
            StoreError: there is no such split.
        """
        entry = self.manifest.splits.get(name)
        if entry is None:
            raise StoreError(
                f"{self.path} has no split {name!r}, only {', '.join(self.splits)}: give it a share in [split] and "
                f"{CURE}"
            )
        return LogSplit(
            name=name,
            rows=entry.rows,
            positives=entry.positives,
            files=tuple(self.path / file.name for file in entry.files),
            file_rows=tuple(file.rows for file in entry.files),
        )

    def table_rows(self) -> dict[str, int]:
        """Rows of each table, in the order in which features first name it."""
        return {feature.table: feature.rows for feature in self.features}

    def vocabulary(self, table: str) -> Any:
        """The values behind a table's ids.

        Args:
            table: its name.

        Returns:
            ``pyarrow.Table`` with ``id`` (int64, 2 and up), ``value`` (int64 or string) and ``count``, by id.

        Raises:
            StoreError: the table has no vocabulary.
        """
        from pyarrow import parquet

        file = self.path / "vocabularies" / f"{table}.parquet"
        if not file.is_file():
            raise StoreError(
                f'{self.path} has no vocabulary of {table!r}: only tables of ids = "vocabulary" do'
            )
        return parquet.read_table(file)

    def verify(self) -> None:
        """Read every file and compare its checksum.

        Raises:
            StoreError: a file was altered; the message holds the checksum expected and found.
        """
        for file in self.manifest.all_files():
            found = checksum(self.path / file.name)
            if found != file.sha256:
                raise StoreError(
                    f"{self.path / file.name} was altered: SHA-256 {found}, expected {file.sha256}; {CURE}"
                )


def _check_size(path: Path, file: StoreFile) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing: {CURE}")
    found = path.stat().st_size
    if found != file.num_bytes:
        raise StoreError(f"{path} has {found} bytes, expected {file.num_bytes}: {CURE}")
