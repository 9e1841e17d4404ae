"""A log of any size becomes Parquet files in which the rows of a session stand together, in order of time.

    files -> sessions and times -> DuckDB: rank of each row
          -> whole rows, in runs sorted by rank -> merged -> part-00000.parquet, part-00001.parquet, ...

These are the first two steps of RecD (Zhao et al., RecD: Deduplication for End-to-End Deep Learning Recommendation
Model Training Infrastructure, MLSys 2023, arXiv 2211.05239): O1, all rows of a session in one file, and O2, next to one
another. docs/clustered-logs.md describes the layout, for other engines too. The log is read twice, sessions and times
alone the first time, and its rows are written twice.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from windrow.comm.errors import DataError, StoreError
from windrow.comm.options import PathOption, PositiveInt, checked_dataclass
from windrow.partition.atomic_writes import atomic_folder
from windrow.recsys.log.clustering.external_sort import rank_sessions, sort_rows, with_hash
from windrow.recsys.log.clustering.log_files import DESCRIPTION_NAME, LogFiles, is_text_or_bytes
from windrow.recsys.log.duckdb_sql import failures_explained, open_database, sql_text
from windrow.recsys.log.files import check_replaceable
from windrow.recsys.log.shard_writer import ShardWriter

__all__ = ["ClusterOptions", "ClusterSummary", "cluster_log"]

LEAST_MEMORY_BYTES = 256 << 20
"""Below this, DuckDB cannot sort, and pieces become too small to read and write well."""
MOST_FILES = 100_000
"""Their names have five digits, and sort as their numbers do."""


@checked_dataclass
class ClusterOptions:
    """A log to cluster, and how."""

    inputs: Annotated[tuple[PathOption, ...], Field(min_length=1)]
    """Parquet files, patterns with * and ?, or folders, of which every *.parquet below counts."""
    output: PathOption
    """Folder to write; appears whole or not at all."""
    by: Annotated[str, Field(min_length=1)]
    """Column of sessions: whole numbers, text or bytes. Each row without one is a session of its own."""
    time: str = ""
    """Column that orders the rows of a session, which stand together then (O2): numbers, dates or times; rows without
    one come last. Empty: rows of a file stay in the order of the log (O1)."""
    files: Annotated[int, Field(ge=1, le=MOST_FILES)] | None = None
    """Files to deal sessions to; "none" for one to each 256 MiB of the log."""
    row_group_rows: PositiveInt | None = None
    """The most rows of a row group; "none" for as many as take 32 MiB in memory, up to 65,536."""
    memory_bytes: Annotated[int, Field(ge=LEAST_MEMORY_BYTES)] = 2 << 30
    """What may be held in memory at a time, beside the program itself; the rest goes to the disk."""
    overwrite: bool = False
    """Whether a clustered log that is already there is replaced."""


FILE_BYTES = 256 << 20
"""Of the log, to each file, where their number is not given."""
ROW_GROUP_BYTES = 32 << 20
"""Of a row group in memory, where its rows are not given."""
MOST_ROW_GROUP_ROWS = 1 << 16
BYTES_TO_RANK_ROW = 96
"""On disk, for a row: what DuckDB sorts, twice, the order, the ranks."""
DUCKDB_SHARE = 0.5
"""Of the memory: DuckDB takes some more than its limit, for what it reads and hands over."""
BYTES_PER_THREAD = 128 << 20
"""Of DuckDB's memory: each thread that sorts needs some of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSummary:
    """What came out."""

    rows: int
    """Of the log, before and after."""
    sessions: int
    """Different ones; each row without a session counts as one."""
    files: int
    """Written."""
    row_groups: int
    """Written."""
    bytes_before: int
    """Of the files read."""
    bytes_after: int
    """Of the files written."""


def cluster_log(options: ClusterOptions, *, progress: Callable[[str, float], None] | None = None) -> ClusterSummary:
    """Cluster a log by session.

    Equal rows in equal order give equal files, whatever the memory. Rows of one session and time stay in the order of
    the log, which is that of the inputs.

    Args:
        options: which log, and how.
        progress: called with the name of a stage and the share of it that is done.

    Raises:
        StoreError: the output exists, is something else than a clustered log, or cannot be written.
        DataError: the log cannot be read, or lacks a column.
    """
    from pyarrow import types

    def is_session(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return types.is_integer(kind) or is_text_or_bytes(kind) or types.is_fixed_size_binary(kind)

    report = progress or (lambda *_: None)
    check_replaceable(options.output, overwrite=options.overwrite, what="clustered log", marker=DESCRIPTION_NAME)
    log = LogFiles.open(options.inputs)
    _check_apart(options, log)
    log.check_column(options.by, "--by", "whole numbers, text or bytes", [is_session])
    if options.time:
        # DuckDB, which sorts, has neither floats of 16 bits nor decimals of more than 38 digits.
        instants = (types.is_timestamp, types.is_date, types.is_time)
        numbers = (types.is_integer, types.is_float32, types.is_float64, types.is_decimal128)
        log.check_column(options.time, "--time", "numbers, dates or times", [*instants, *numbers])
    _check_disk(options.output, log)
    with (
        failures_explained(options.output, "raise --memory, or choose another output"),
        atomic_folder(options.output, overwrite=options.overwrite) as folder,
    ):
        work = folder / "work"
        work.mkdir()
        summary = _cluster(log, options, folder, work, report)
        shutil.rmtree(work)
        described = {
            "format_version": 1,
            "by": options.by,
            "time": options.time,
            "order": "sessions" if options.time else "session shards",
            **asdict(summary),
        }
        (folder / DESCRIPTION_NAME).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    return summary


def _cluster(
    log: LogFiles, options: ClusterOptions, folder: Path, work: Path, report: Callable[[str, float], None]
) -> ClusterSummary:
    keys = work / "keys.parquet"
    _write_keys(log, options, keys, report)
    shards = options.files or -(-log.num_bytes // FILE_BYTES)
    limit = int(options.memory_bytes * DUCKDB_SHARE)
    threads = max(1, min(len(os.sched_getaffinity(0)), limit // BYTES_PER_THREAD))
    with open_database(f"{limit}B", work / "duckdb", threads=threads) as database:
        rows = (
            f"SELECT session, time, file_row_number AS row, 0 AS split, {shards} AS shards "
            f"FROM read_parquet({sql_text(keys)}, file_row_number = true)"
        )
        ranks, counts = rank_sessions(database, rows, work, cluster=bool(options.time))
        (sessions,) = database.execute(f"SELECT count(*) FROM (SELECT DISTINCT hash FROM {with_hash(rows)})").fetchone()
    keys.unlink()
    row_group_rows = options.row_group_rows or max(1, min(MOST_ROW_GROUP_ROWS, int(ROW_GROUP_BYTES / log.row_bytes)))
    writer = _ClusterWriter(
        folder,
        log.schema,
        shard_rows=[counts.get((0, shard), 0) for shard in range(shards)],
        row_group_rows=row_group_rows,
    )
    done = 0
    with writer:
        for batch in sort_rows(
            log.batches(),
            ranks,
            row_bytes=log.row_bytes,
            memory_bytes=options.memory_bytes,
            folder=work,
            advance=lambda rows: report("sorting", rows / log.rows),
        ):
            writer.write(batch)
            done += batch.num_rows
            report("writing", done / log.rows)
    return ClusterSummary(
        rows=log.rows,
        sessions=sessions,
        files=len(writer.written),
        row_groups=writer.row_groups,
        bytes_before=log.num_bytes,
        bytes_after=sum(path.stat().st_size for path, _ in writer.written),
    )


def _write_keys(log: LogFiles, options: ClusterOptions, path: Path, report: Callable[[str, float], None]) -> None:
    """Write what decides on the order: columns `session` and `time`, which is 0 where there is none."""
    import pyarrow as pa
    from pyarrow import parquet, types

    done = 0
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for batch in log.batches(list(dict.fromkeys([options.by, options.time or options.by]))):
            times = batch.column(options.time) if options.time else pa.array(np.zeros(batch.num_rows, np.int8))
            if types.is_temporal(times.type):
                # DuckDB 1.1 cuts nanoseconds off times of the day and off those with a zone; newer ones do not.
                times = times.view(pa.int32() if times.type.bit_width == 32 else pa.int64())
            keys = pa.table({"session": batch.column(options.by), "time": times})
            if writer is None:
                writer = stack.enter_context(
                    parquet.ParquetWriter(path, keys.schema, compression="lz4", store_schema=False)
                )
            writer.write_table(keys)
            done += batch.num_rows
            report("reading sessions", done / log.rows)


ZSTD_LEVEL = 3
"""Higher levels take twice the time and more for a twentieth of the bytes; see docs/clustered-logs.md."""
PAGE_BYTES = 1 << 20
"""Of a page, before compression. Within a page repeats are found: a 64 KiB page costs a tenth more bytes."""


class _ClusterWriter(ShardWriter):
    """Writes files of the log's own schema, which may have dictionaries where rows have values."""

    def __init__(self, folder: Path, schema: Any, **groups: Any) -> None:
        super().__init__(folder, **groups)
        self._schema = schema

    def _options(self, schema: Any) -> dict[str, Any]:
        from pyarrow import types

        # Text and bytes of one value a row gain from a dictionary when rows are clustered. Positions in a dictionary
        # take odd numbers of bits, so equal lists look different to the compressor, which finds them where ids are
        # written in full. See docs/clustered-logs.md.
        text = [field.name for field in schema if is_text_or_bytes(field.type) or types.is_dictionary(field.type)]
        return {
            "compression": "zstd",
            "compression_level": ZSTD_LEVEL,
            "use_dictionary": text,
            "data_page_size": PAGE_BYTES,
        }

    def _stored(self, rows: Any) -> Any:
        import pyarrow as pa

        try:
            # In one piece: a page ends with each piece.
            return rows.combine_chunks().cast(self._schema)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a row group of {rows.num_rows} rows has too many different values for a dictionary of the log "
                f"({error}): write the log with wider positions in dictionaries, or lower --row-group-rows"
            ) from error


def _check_apart(options: ClusterOptions, log: LogFiles) -> None:
    """What is read is not replaced, and what is written is not read as part of the log the next time."""
    output = options.output.resolve()
    folders = [path for path in options.inputs if path.is_dir() and output.is_relative_to(path.resolve())]
    inside = [path for path in log.files if path.resolve().is_relative_to(output)]
    for path in (*folders, *inside):
        raise StoreError(f"{options.output} and the log {path} are one in the other: choose an output beside the log")


def _check_disk(output: Path, log: LogFiles) -> None:
    """Refuse what the disk surely cannot hold: the runs, the output, and what it takes to order rows."""
    folder = next(parent for parent in output.resolve().parents if parent.exists())
    needed = log.rows * BYTES_TO_RANK_ROW + 2 * log.num_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"{folder} has {free} bytes free, but clustering {log.rows} rows needs about {needed} there: make room, or "
            "choose an output on a larger disk"
        )
