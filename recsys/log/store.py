"""A prepared log: one folder, the same for any number of ranks, with a manifest by which to tell that it is whole.

    STORE/manifest.json                   format version, features, counts, settings; rows, size and SHA-256 of files
    STORE/train/part-00000.parquet        samples of the training split, in row groups of `ROW_GROUP_ROWS`
    STORE/validation/..., STORE/test/...  the same for the other splits, where there are any
    STORE/vocabularies/TABLE.parquet      id -> value and count, of each table that has a vocabulary

Columns of the samples::

    label             float32                  0 or 1, or a real number; fixed_size_list<float> of several labels
    sample_weight     float32                  weight of the sample; not there where there are none
    dense             fixed_size_list<float>   the dense values, transformed; not there where there are none
    NAME              int64                    id of a feature with one value per sample
    NAME              list<int64>              ids of a multi-hot feature
    NAME.weights      list<float>              their weights, where it has any
                                               of these three, null for what the sample before in the row group has
    time              int64                    as in the log; microseconds since 1970 where the log has dates
    session           int64                    as in the log; a hash of it where the log has text

Whatever is never null is declared so in the files, which makes lists a quarter faster to decode.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pydantic
from pydantic import BeforeValidator, ConfigDict, ValidationError

from windrow.comm.errors import RecipeError, StoreError
from windrow.partition.manifest import check_file, checksum, read_document, write_document
from windrow.recsys.batches.arrow_columns import leave_out_repeats
from windrow.recsys.log.options import LabelKind, LogOptions
from windrow.recsys.log.shard_writer import ShardWriter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from windrow.recsys.tables.options import EmbeddingBagConfig

__all__ = [
    "CURE",
    "DENSE_COLUMN",
    "FILE_ROWS",
    "FORMAT_VERSION",
    "LABEL_COLUMN",
    "MANIFEST_NAME",
    "ROW_GROUP_ROWS",
    "SAMPLE_WEIGHT_COLUMN",
    "SESSION_COLUMN",
    "TIME_COLUMN",
    "VOCABULARIES",
    "WEIGHTS_SUFFIX",
    "FeatureEntry",
    "LogManifest",
    "LogSplit",
    "LogStore",
    "SampleOrder",
    "SplitEntry",
    "SplitWriter",
    "StoreFile",
    "combined_fingerprint",
    "describe_store_file",
    "plain_settings",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
VOCABULARIES = "vocabularies"
CURE = "run `windrow prepare` again to rebuild the store"

SampleOrder = Literal["log", "session shards", "sessions"]
"""log: as the log has them, or by time where the split is by time. session shards: the same within each file, and each
session in one file. sessions: those of a session next to one another, in order of time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureEntry:
    """One sparse feature of a prepared log."""

    __pydantic_config__ = ConfigDict(extra="forbid")
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
    is_text: bool | None = None
    """Whether its values were text, not whole numbers; None in stores that do not say."""
    repeats_left_out: bool = False
    """Whether a null stands for what the sample before in the row group has: see
    `windrow.recsys.batches.arrow_columns`."""

    def mean_ids(self, split: str, rows: int) -> float:
        """Ids per sample of a split, where it has `rows` samples."""
        return self.counts[split]["ids"] / rows if rows else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFile:
    """One file of samples."""

    __pydantic_config__ = ConfigDict(extra="forbid")
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

    __pydantic_config__ = ConfigDict(extra="forbid")
    rows: int
    """Samples."""
    positives: Annotated[tuple[int, ...], BeforeValidator(lambda found: (found,) if isinstance(found, int) else found)]
    """Samples of label 1, of each binary label; empty where labels are real numbers. One number in old stores."""
    files: tuple[StoreFile, ...]
    """Files, whose samples follow one another."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid"))
class LogManifest:
    """What a prepared log holds."""

    windrow_version: str
    """Version of windrow that wrote it."""
    dense: tuple[str, ...]
    """Names of the dense values, in the order of the column ``dense``."""
    labels: tuple[str, ...] = ("label",)
    """Names of the labels."""
    label_kind: LabelKind = "binary"
    """What they are."""
    has_sample_weight: bool = False
    """Whether there is a column ``sample_weight``."""
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
    moments: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Mean and deviation by which dense columns were made standard."""
    origin: Mapping[str, Any]
    """The settings that it was made with."""
    fingerprint: str
    """SHA-256 over the mapped samples and their vocabularies: equal only for equal data and mapping."""
    ancestors: tuple[str, ...] = ()
    """Fingerprints of the stores whose vocabularies it continues, the latest first."""
    order: SampleOrder = "log"
    """In which order the samples of a split are; manifests written before there was a choice do not say."""

    def write(self, path: Path) -> None:
        """Write the manifest as JSON."""
        write_document(path, asdict(self), format_version=FORMAT_VERSION)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and check a manifest.

        Raises:
            StoreError: there is none, it is no JSON, of another version, or lacks a field.
        """
        document = read_document(path, format_version=FORMAT_VERSION, store="prepared log", cure=CURE)
        try:
            return cls(**document)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise StoreError(f"{path} lacks a field or has a wrong one ({wrong}): {CURE}") from error

    def all_files(self) -> tuple[StoreFile, ...]:
        """Every file beside the manifest."""
        return (*(file for split in self.splits.values() for file in split.files), *self.vocabularies)


def combined_fingerprint(files: tuple[StoreFile, ...]) -> str:
    """SHA-256 over names and checksums of files, in any order."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name} {file.sha256}\n".encode())
    return digest.hexdigest()


def plain_settings(settings: "DataclassInstance") -> dict[str, Any]:
    """Settings as `LogManifest.origin` holds them, to write and to compare: lists for tuples, text for paths."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=str))
    return plain


LABEL_COLUMN = "label"
SAMPLE_WEIGHT_COLUMN = "sample_weight"
DENSE_COLUMN = "dense"
TIME_COLUMN = "time"
SESSION_COLUMN = "session"
WEIGHTS_SUFFIX = ".weights"
ROW_GROUP_ROWS = 1 << 16
"""Samples of a row group: what a reader decodes at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSplit:
    """The samples of one split."""

    rows: int
    """Samples."""
    positives: tuple[int, ...]
    """Samples of label 1, of each binary label; empty where labels are real numbers."""
    files: tuple[Path, ...]
    """Parquet files, whose samples follow one another."""
    file_rows: tuple[int, ...]
    """Samples of each file."""

    @property
    def base_rates(self) -> tuple[float, ...]:
        """Share of samples of label 1, of each binary label; 0 where there are no samples."""
        return tuple(count / self.rows if self.rows else 0.0 for count in self.positives)


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

        With `verify` every file is read and checksums are compared.

        Raises:
            StoreError: no store, another version, a file missing, truncated or altered.
        """
        path = Path(path)
        store = cls(path=path, manifest=LogManifest.read(path / MANIFEST_NAME))
        for file in store.manifest.all_files():
            check_file(path / file.name, num_bytes=file.num_bytes, sha256=file.sha256 if verify else "", cure=CURE)
        return store

    @property
    def dense(self) -> tuple[str, ...]:
        """Names of the dense values."""
        return self.manifest.dense

    @property
    def num_dense(self) -> int:
        """Number of dense values."""
        return len(self.manifest.dense)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.manifest.labels

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
        """The split train, validation or test.

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

        Returns:
            ``pyarrow.Table`` with ``id`` (int64, 2 and up), ``value`` (int64 or string) and ``count``, by id.

        Raises:
            StoreError: the table has no vocabulary.
        """
        from pyarrow import parquet

        if table not in self.vocabulary_tables:
            raise StoreError(f'{self.path} has no vocabulary of {table!r}: only tables of ids = "vocabulary" do')
        return parquet.read_table(self.vocabulary_file(table))

    @property
    def vocabulary_tables(self) -> tuple[str, ...]:
        """Tables that have a vocabulary."""
        return tuple(Path(file.name).stem for file in self.manifest.vocabularies)

    def vocabulary_file(self, table: str) -> Path:
        """Where the vocabulary of a table is; see `vocabulary`."""
        return self.path / VOCABULARIES / f"{table}.parquet"

    def log_options(self, paths: tuple[Path, ...]) -> LogOptions:
        """The rules by which its samples were mapped, for other files of the same kind.

        Raises:
            StoreError: they are those of another version.
        """
        try:
            return LogOptions(**{**self.manifest.origin["log"], "paths": paths, "vocabularies_from": None})
        except (KeyError, RecipeError) as error:
            raise StoreError(f"{self.path} was prepared by another version of windrow ({error}): {CURE}") from error

    def tables(self, *, dim: int) -> "list[EmbeddingBagConfig]":
        """Configurations of the tables of all features, `dim` columns each, to make an `EmbeddingBagCollection` of.

        Where ids have weights (`FeatureEntry.weighted`), make it with ``is_weighted=True``; else they are not used.
        """
        from windrow.recsys.tables.options import EmbeddingBagConfig

        features: dict[str, list[str]] = {}
        for feature in self.features:
            features.setdefault(feature.table, []).append(feature.name)
        return [
            EmbeddingBagConfig(name=table, num_embeddings=rows, embedding_dim=dim, feature_names=features[table])
            for table, rows in self.table_rows().items()
        ]


FILE_ROWS = 1 << 22
"""Samples of a file: 64 row groups, where sessions are not dealt to files."""


class SplitWriter(ShardWriter):
    """Writes the samples of one split, in full row groups. A context manager.

    Args:
        store: folder of the store.
        name: of the split.
        shard_rows: samples of each file, where sessions were dealt to files; only the last row group of a
            file has fewer samples than the others then.
        first_file: number of the first file.
        clustered: whether lists that follow one another are often equal.
        repeats: columns of features in which what the sample before has is left out, each with the column of its
            weights, empty for none: see `windrow.recsys.batches.arrow_columns`.
    """

    def __init__(
        self,
        store: Path,
        name: str,
        *,
        shard_rows: Sequence[int] = (),
        first_file: int = 0,
        clustered: bool = False,
        repeats: Sequence[tuple[str, str]] = (),
    ) -> None:
        rows = shard_rows or repeat(FILE_ROWS)
        super().__init__(store / name, shard_rows=rows, row_group_rows=ROW_GROUP_ROWS, first=first_file)
        self._store = store
        self._clustered = clustered
        self._repeats = tuple(repeats)

    def _stored(self, rows: Any) -> Any:
        import pyarrow as pa

        stored = leave_out_repeats(rows, self._repeats)
        repeating = {name for names in self._repeats for name in names}
        return stored.cast(pa.schema([_required(one, nullable=one.name in repeating) for one in stored.schema]))

    def _options(self, schema: Any) -> dict[str, Any]:
        # Of what Parquet offers, this decodes fastest where it is at all small: on click logs of 20 ids and a list, a
        # quarter more CPU time than no compression, at less than a third of the bytes. Where equal lists follow one
        # another, lz4 finds them if they are written in full (positions in a dictionary take odd numbers of bits): as
        # many bytes as with a dictionary, a fifth less time. zstd takes 0.7 of the bytes and 1.15 times as long.
        single = [field.name for field in schema if field.type.num_fields == 0]
        return {
            "compression": "lz4",
            "use_dictionary": single if self._clustered else True,
            "write_statistics": False,
            "write_page_checksum": True,  # What training reads is checked as it is decoded.
        }

    def files(self) -> tuple[StoreFile, ...]:
        """What was written, after the block has ended: reads all of it for the checksums."""
        return tuple(describe_store_file(self._store, path, rows) for path, rows in self.written)


def _required(column: Any, *, nullable: bool) -> Any:
    """The ``pyarrow.Field`` of a column without nulls in its lists, nor in itself, unless it is nullable."""
    import pyarrow as pa

    kind = column.type
    if kind.num_fields:
        kind = pa.list_(kind.value_field.with_nullable(nullable=False), getattr(kind, "list_size", -1))
    return pa.field(column.name, kind, nullable=nullable)


def describe_store_file(store: Path, path: Path, rows: int) -> StoreFile:
    """Make the entry of a file of so many rows that was just written to a store, whose folder is given."""
    return StoreFile(
        name=path.relative_to(store).as_posix(), rows=rows, num_bytes=path.stat().st_size, sha256=checksum(path)
    )
