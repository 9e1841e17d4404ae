"""From a log in any format to a prepared store: one process, bounded memory, every step out of core.

files -> readers -> staged log (conforming columns, one Parquet file)
                      | sorted by time, where the split is by time and it is not; or by session, where that is asked for
                      | counted: vocabularies and dense moments, over the training split
                      v
                    samples of train, validation, test -> store
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.partition.atomic_folder import atomic_folder
from windrow.recsys.log_options import LogOptions
from windrow.recsys.mapping import SampleMapper
from windrow.recsys.prefetch import prefetch
from windrow.recsys.readers.files import file_labels, resolve_files
from windrow.recsys.readers.make import make_reader
from windrow.recsys.splits import SPLITS, LogSplitOptions, parse_instant, split_by_time
from windrow.recsys.staged_log import StagedLog
from windrow.recsys.staging import StagedColumn, StagingWriter, staged_columns, text_types
from windrow.recsys.store import ROW_GROUP_ROWS, WEIGHTS_SUFFIX, LogStore
from windrow.recsys.store_manifest import (
    MANIFEST_NAME,
    FeatureEntry,
    LogManifest,
    SampleOrder,
    SplitEntry,
    StoreFile,
    combined_fingerprint,
    plain_settings,
)
from windrow.recsys.store_writer import SplitWriter, describe_store_file
from windrow.recsys.vocabulary import Vocabulary

__all__ = ["Progress", "prepare_log"]

Progress = Callable[[str, float], None]
"""Called with the name of a stage and the share of it that is done, 0 to 1."""

VOCABULARIES = "vocabularies"


def prepare_log(
    store: Path,
    log: LogOptions,
    split: LogSplitOptions,
    *,
    shard: bool = False,
    cluster: bool = False,
    leave_out_repeats: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> LogStore:
    """Read a log, split and map it, and write a store.

    Args:
        store: folder to write; appears whole or not at all.
        log: where the log is and how its columns become samples.
        split: which samples train, validate and test.
        shard: keep the samples of a session in one file: RecD's O1. Needs log.session.
        cluster: keep the samples of a session next to one another, in order of time, or of the log where it has no
            times: RecD's O2. Needs log.session.
        leave_out_repeats: write the ids of a feature once for each run of samples that have the same, which pays where
            samples that repeat are neighbours; reading gives the same samples.
        overwrite: replace an existing store.
        progress: told how far it is.

    Returns:
        The store, opened.

    Raises:
        StoreError: the store exists and is not to be overwritten, or is something else than a store.
        RecipeError: the two sections contradict each other.
        DataError: the log breaks a law; the message names file, row and cure.

    Memory: some blocks of rows, what DuckDB may hold (2 GB), and the vocabularies. Disk: the store twice over, while
    it is written.
    """
    if split.by == "time" and not log.time:
        raise RecipeError('[split] by = "time" needs the column of times: set time in [log]')
    if (shard or cluster) and not log.session:
        raise RecipeError(
            f"[deduplication] {'shard' if shard else 'cluster'} = true needs the column of sessions: set session in "
            "[log]"
        )
    if log.format == "interactions":
        raise RecipeError(
            '[log] format = "interactions" needs no preparation: training reads such files as they are'
        )
    if store.exists() and not overwrite:
        raise StoreError(f"{store} already exists: choose another folder or pass --overwrite")
    _check_replaceable(store)
    report = progress or _silent
    columns = staged_columns(log, split)
    with atomic_folder(store, overwrite=overwrite) as folder:
        work = folder / "work"
        work.mkdir()
        rows, in_order = _stage(work / "staged.parquet", columns, log, split, report)
        with StagedLog(work / "staged.parquet", work) as staged:
            by_session = shard or cluster
            if split.by == "time" and not in_order and not by_session:
                report("sorting by time", 0.0)
                staged.sort_by_time()
                in_order = True
            cuts = _cuts(staged, rows, split, in_order=in_order)
            shard_rows: dict[int, tuple[int, ...]] = {}
            if by_session:
                report("sorting by session", 0.0)
                times = bool(log.time) if cluster else split.by == "time"
                shard_rows = staged.sort_by_session(_code(cuts), shard=shard, cluster=cluster, times=times)
            training = "split = 0" if cuts is None else f"time < {cuts[0]}"
            vocabularies = _vocabularies(folder, staged, log, training, report)
            dense = [f"dense.{name}" for name in log.dense] if log.dense_transform == "standard" else []
            mapper = SampleMapper(
                log,
                {name: Vocabulary.of(_values(path)) for name, path in vocabularies.items()},
                staged.moments(dense, training),
            )
            repeats = [
                (name, name + WEIGHTS_SUFFIX if log.features[name].weights else "")
                for name in (log.features if leave_out_repeats else ())
            ]
            entries = _map(
                folder,
                staged.file,
                mapper,
                cuts,
                rows,
                report,
                shard_rows=shard_rows,
                clustered=cluster,
                repeats=repeats,
            )
        _check_splits(entries, split)
        shutil.rmtree(work)
        order: SampleOrder = "sessions" if cluster else "session shards" if shard else "log"
        origin = {
            "log": plain_settings(log),
            "split": plain_settings(split),
            "deduplication": {"shard": shard, "cluster": cluster},
        }
        _write_manifest(
            folder,
            log,
            mapper,
            entries,
            vocabularies,
            origin=origin,
            order=order,
            repeats_left_out=leave_out_repeats,
        )
    return LogStore.open(store)


def _check_replaceable(store: Path) -> None:
    """Only what this function once wrote is replaced: a mistaken path must not cost a folder of the user's own."""
    if (
        not store.exists()
        or (store / MANIFEST_NAME).is_file()
        or (store.is_dir() and not any(store.iterdir()))
    ):
        return
    raise StoreError(
        f"{store} is no prepared log (there is no {MANIFEST_NAME} in it) and is not replaced: choose another store, or "
        "remove it yourself"
    )


def _stage(
    path: Path,
    columns: tuple[StagedColumn, ...],
    log: LogOptions,
    split: LogSplitOptions,
    report: Progress,
) -> tuple[int, bool]:
    """Read the log and write the staged file; how many rows, and whether they are in order of time."""
    groups = [resolve_files(log.paths)]
    if split.by == "files":
        groups += [resolve_files(split.validation_paths), resolve_files(split.test_paths)]
    everything = [file for group in groups for file in group]
    twice = sorted({str(file) for file in everything if everything.count(file) > 1})
    if twice:
        raise DataError(f"{', '.join(twice)} is in two splits: what is trained on must not be tested on")
    labels = file_labels(everything)
    sizes = {file: file.stat().st_size for file in everything}
    types = text_types(columns)
    with StagingWriter(path, columns, log, split) as writer:
        for code, files in enumerate(groups):
            if not files:
                continue
            for block in prefetch(make_reader(log.format, files, types).batches()):
                writer.write(block, labels[block.file], code)
                before = sum(sizes[file] for file in everything[: everything.index(block.file)])
                report("reading", (before + block.file_share * sizes[block.file]) / sum(sizes.values()))
        if writer.rows == 0:
            raise DataError(f"{', '.join(str(file) for file in everything)}: there are no samples in the log")
        return writer.rows, writer.in_time_order


def _cuts(staged: StagedLog, rows: int, split: LogSplitOptions, *, in_order: bool) -> tuple[int, int] | None:
    """Times at which validation and test begin; None where the split is known already."""
    if split.by != "time":
        return None
    if split.instants:
        first, second = (parse_instant(instant) for instant in split.instants)
        return first, second
    train, validation, test = split.fractions
    # One past the last time, where a split has no share and would begin behind the last row.
    end = staged.time_of_row(rows - 1, in_order=in_order) + 1
    bounds = (round(train * rows), round((train + validation) * rows))
    wanted = (validation + test > 0, test > 0)
    first, second = (
        staged.time_of_row(bound, in_order=in_order) if some and bound < rows else end
        for bound, some in zip(bounds, wanted, strict=True)
    )
    return first, second


def _code(cuts: tuple[int, int] | None) -> str:
    """The code of a row's split, in SQL: what `_codes` works out."""
    return (
        "split"
        if cuts is None
        else f"CASE WHEN time < {cuts[0]} THEN 0 WHEN time < {cuts[1]} THEN 1 ELSE 2 END"
    )


def _vocabularies(
    folder: Path, staged: StagedLog, log: LogOptions, training: str, report: Progress
) -> dict[str, Path]:
    """Write the vocabulary of each table that has one; the file of each."""
    tables = {
        table: features
        for table, features in log.tables().items()
        if log.features[features[0]].ids == "vocabulary"
    }
    if tables:
        (folder / VOCABULARIES).mkdir()
    written = {}
    for place, (table, features) in enumerate(tables.items()):
        report(f"counting {table}", place / len(tables))
        written[table] = folder / VOCABULARIES / f"{table}.parquet"
        _check_one_type(staged.file, table, features)
        rule = log.features[features[0]]
        staged.write_vocabulary(
            written[table],
            [(f"id.{name}", log.features[name].multi_hot) for name in features],
            training,
            min_count=rule.min_count,
            max_rows=rule.rows,
        )
    return written


def _check_one_type(staged: Path, table: str, features: tuple[str, ...]) -> None:
    """Features that share a vocabulary have to have values of one type."""
    from pyarrow import parquet, types

    schema = parquet.read_schema(staged)
    kinds = [schema.field(f"id.{name}").type for name in features]
    found = {str(kind.value_type if types.is_list(kind) else kind) for kind in kinds}
    if len(found) > 1:
        raise DataError(
            f"features {', '.join(features)} share table {table!r}, but hold {' and '.join(sorted(found))}: give their "
            "columns one type, or the features a table each"
        )


def _values(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    column = parquet.read_table(path, columns=["value"])["value"]
    # One array: positions in it are rows of the table. Text of a billion bytes and more needs wide offsets.
    wide = pa.types.is_string(column.type)
    return (column.cast(pa.large_string()) if wide else column).combine_chunks()


def _map(
    folder: Path,
    staged: Path,
    mapper: SampleMapper,
    cuts: tuple[int, int] | None,
    rows: int,
    report: Progress,
    *,
    shard_rows: Mapping[int, Sequence[int]],
    clustered: bool,
    repeats: Sequence[tuple[str, str]],
) -> dict[str, SplitEntry]:
    """Map all rows and write the splits; the entry of each that has samples."""
    import contextlib

    done = 0
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(
                SplitWriter(
                    folder, name, shard_rows=shard_rows.get(code, ()), clustered=clustered, repeats=repeats
                )
            )
            for code, name in enumerate(SPLITS)
        }
        for batch in prefetch(_batches(staged)):
            codes = _codes(batch, cuts)
            for code, name in enumerate(SPLITS):
                chosen = codes == code
                if chosen.any():
                    writers[name].write(mapper.map(_rows(batch, chosen), name))
            done += batch.num_rows
            report("mapping", done / rows)
    report("checksums", 0.0)
    entries: dict[str, SplitEntry] = {}
    for name, writer in writers.items():
        files = writer.files()
        if files:
            entries[name] = SplitEntry(
                rows=sum(file.rows for file in files), positives=mapper.counts.positives[name], files=files
            )
    return entries


def _batches(staged: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(staged) as file:
        yield from file.iter_batches(ROW_GROUP_ROWS)


def _codes(batch: Any, cuts: tuple[int, int] | None) -> npt.NDArray[np.int8]:
    if cuts is None:
        codes: npt.NDArray[np.int8] = batch.column("split").to_numpy()
        return codes
    return split_by_time(batch.column("time").to_numpy(), cuts)


def _rows(batch: Any, chosen: npt.NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return batch if chosen.all() else batch.filter(pa.array(chosen))


def _check_splits(entries: dict[str, SplitEntry], split: LogSplitOptions) -> None:
    for name in split.expected_splits():
        if name not in entries:
            sizes = ", ".join(f"{other} {entry.rows}" for other, entry in entries.items())
            together = ", where samples of one instant stay together" if split.by == "time" else ""
            raise DataError(
                f"the {name} split has no samples ({sizes}): give it a larger share in [split], other instants, or "
                f"more of a log{together}"
            )


def _write_manifest(
    folder: Path,
    log: LogOptions,
    mapper: SampleMapper,
    entries: dict[str, SplitEntry],
    vocabularies: dict[str, Path],
    *,
    origin: Mapping[str, Any],
    order: SampleOrder,
    repeats_left_out: bool,
) -> None:
    from pyarrow import parquet

    described = tuple(
        describe_store_file(folder, path, parquet.read_metadata(path).num_rows)
        for path in vocabularies.values()
    )
    features = tuple(
        FeatureEntry(
            name=name,
            table=log.table_of(name),
            rows=mapper.table_rows(name),
            multi_hot=options.multi_hot,
            weighted=bool(options.weights),
            ids=options.ids,
            counts=mapper.counts.features[name],
            repeats_left_out=repeats_left_out,
        )
        for name, options in log.features.items()
    )
    files: tuple[StoreFile, ...] = (*(file for entry in entries.values() for file in entry.files), *described)
    LogManifest(
        windrow_version=version("windrow"),
        dense=log.dense,
        dense_missing=mapper.counts.dense_missing,
        has_time=bool(log.time),
        has_session=bool(log.session),
        features=features,
        splits=entries,
        vocabularies=described,
        origin=origin,
        order=order,
        fingerprint=combined_fingerprint(files),
    ).write(folder / MANIFEST_NAME)


def _silent(stage: str, share: float) -> None:
    """Tell nobody."""
