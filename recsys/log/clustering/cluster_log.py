"""A log of any size becomes Parquet files in which the rows of a session stand together, in order of time.

    files -> sessions and times -> DuckDB: rank of each row
          -> whole rows, in runs sorted by rank -> merged -> part-00000.parquet, part-00001.parquet, ...

These are the first two steps of RecD (Zhao et al., RecD: Deduplication for End-to-End Deep Learning Recommendation
Model Training Infrastructure, MLSys 2023, arXiv 2211.05239): O1, all rows of a session in one file, and O2, next to one
another. docs/clustered-logs.md describes the layout, for other engines too. The log is read twice, sessions and times
alone the first time, and its rows are written twice.
"""

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.options import PathOption, PositiveInt, checked_dataclass
from windrow.partition.atomic_writes import atomic_folder
from windrow.recsys.log.clustering.external_sort import rank_rows, sort_rows
from windrow.recsys.log.clustering.log_files import (
    DESCRIPTION_NAME,
    LogFiles,
    check_session_type,
    check_time_type,
    is_text_or_bytes,
    is_utf8,
)
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

    inputs: tuple[PathOption, ...]
    """Parquet files, patterns with * and ?, or folders, of which every *.parquet below counts."""
    output: PathOption
    """Folder to write; appears whole or not at all."""
    by: str
    """Column of sessions: whole numbers, text or bytes. Each row without one is a session of its own."""
    time: str = ""
    """Column that orders the rows of a session: numbers, dates or times; rows without one come last. Needed unless
    `sort` is off."""
    sort: bool = True
    """O2: rows of a session stand together, in order of time. Off: rows of a file stay in the order of the log (O1)."""
    files: Annotated[int, Field(ge=1, le=MOST_FILES)] | None = None
    """Files to deal sessions to; "none" for one to each 256 MiB of the log."""
    row_group_rows: PositiveInt | None = None
    """The most rows of a row group; "none" for as many as take 32 MiB in memory, up to 65,536."""
    memory_bytes: Annotated[int, Field(ge=LEAST_MEMORY_BYTES)] = 2 << 30
    """What may be held in memory at a time, beside the program itself; the rest goes to the disk."""
    overwrite: bool = False
    """Whether a clustered log that is already there is replaced."""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            RecipeError: an option is missing or out of range.
        """
        if not self.inputs:
            raise RecipeError("no log is named: give files, patterns or folders")
        if not self.by:
            raise RecipeError("the column of sessions is not named: give --by")
        if self.sort and not self.time:
            raise RecipeError(
                "rows of a session are put in order of time: name its column with --time, or turn this off with "
                "--no-sort"
            )
        if self.time and not self.sort:
            raise RecipeError(
                f"--time {self.time} orders the rows of a session, and --no-sort leaves rows in the order of the log: "
                "give one of them"
            )


FILE_BYTES = 256 << 20
"""Of the log, to each file, where their number is not given."""
ROW_GROUP_BYTES = 32 << 20
"""Of a row group in memory, where its rows are not given."""
MOST_ROW_GROUP_ROWS = 1 << 16
MOST_PIECE_BYTES = 1 << 30
"""Of a run or bucket: positions in one array of text are 32-bit numbers."""
RUN_SHARE, BUCKET_SHARE, ROW_GROUP_SHARE = 0.15, 0.08, 0.15
"""Of the memory. Of each up to three copies exist at a time: as read, joined, sorted or encoded."""
BUCKET_SLACK = 1.5
"""How much heavier than rows of mean size those of a bucket may be before it is read in parts."""
BYTES_TO_RANK_ROW = 96
"""On disk, for a row: what DuckDB sorts, twice, the order, the ranks."""


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
    cut_sessions: int
    """Sessions larger than a row group, which go on in the next one."""
    bytes_before: int
    """Of the files read."""
    bytes_after: int
    """Of the files written."""

    @property
    def rows_per_session(self) -> float:
        """Mean."""
        return self.rows / self.sessions

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after."""
        return self.bytes_before / self.bytes_after


def cluster_log(options: ClusterOptions, *, progress: Callable[[str, float], None] | None = None) -> ClusterSummary:
    """Cluster a log by session.

    Equal rows in equal order give equal files, whatever the memory. Rows of one session and time stay in the order of
    the log, which is that of the inputs.

    Args:
        options: which log, and how.
        progress: called with the name of a stage and the share of it that is done.

    Raises:
        StoreError: the output exists, is something else than a clustered log, or cannot be written.
        DataError: the log cannot be read, lacks a column, or needs more memory.
        RecipeError: row groups of so many rows do not fit into the memory.
    """
    report = progress or (lambda *_: None)
    if not is_utf8(options.output.resolve()):
        raise StoreError(
            f"the output {os.fsencode(options.output.resolve())!r} is no UTF-8, which Arrow and DuckDB need: choose "
            "another"
        )
    check_replaceable(options.output, overwrite=options.overwrite, what="clustered log", marker=DESCRIPTION_NAME)
    log = LogFiles.open(options.inputs)
    _check_apart(options, log)
    check_session_type(log, options.by)
    if options.sort:
        check_time_type(log, options.time)
    _check_row_groups(options, log)
    _check_disk(options.output, log)
    try:
        with atomic_folder(options.output, overwrite=options.overwrite) as folder:
            work = folder / "work"
            work.mkdir()
            summary = _cluster(log, options, folder, work, report)
            shutil.rmtree(work)
            described = {
                "format_version": 1,
                "by": options.by,
                "time": options.time,
                "order": "sessions" if options.sort else "session shards",
                **asdict(summary),
            }
            (folder / DESCRIPTION_NAME).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write the clustered log {options.output} ({error}): make room there, or choose another output"
        ) from error
    return summary


def _cluster(
    log: LogFiles, options: ClusterOptions, folder: Path, work: Path, report: Callable[[str, float], None]
) -> ClusterSummary:
    ranks = rank_rows(
        log,
        by=options.by,
        time=options.time,
        sort=options.sort,
        shards=options.files or -(-log.num_bytes // FILE_BYTES),
        work=work,
        memory_bytes=options.memory_bytes,
        advance=lambda share: report("reading sessions", share),
    )
    row_group_rows = options.row_group_rows or max(1, min(MOST_ROW_GROUP_ROWS, int(ROW_GROUP_BYTES / log.row_bytes)))
    writer = _ClusterWriter(
        folder,
        log.schema,
        shard_rows=ranks.shard_rows,
        row_group_rows=row_group_rows,
        by=options.by if options.sort else "",
    )
    bucket_bytes = min(MOST_PIECE_BYTES, BUCKET_SHARE * options.memory_bytes)
    done = 0
    with writer:
        for rows in sort_rows(
            log.batches(),
            ranks.ranks,
            bucket_rows=max(1, int(bucket_bytes / log.row_bytes)),
            run_bytes=min(MOST_PIECE_BYTES, int(RUN_SHARE * options.memory_bytes)),
            folder=work,
            bucket_bytes=int(BUCKET_SLACK * bucket_bytes),
            advance=lambda rows: report("sorting", rows / log.rows),
        ):
            writer.write(rows)
            done += rows.num_rows
            report("writing", done / log.rows)
    return ClusterSummary(
        rows=log.rows,
        sessions=ranks.sessions,
        files=len(writer.written),
        row_groups=writer.row_groups,
        cut_sessions=writer.cut_sessions,
        bytes_before=log.num_bytes,
        bytes_after=sum(path.stat().st_size for path, _ in writer.written),
    )


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
        return {
            "compression": "zstd",
            "compression_level": ZSTD_LEVEL,
            "use_dictionary": _text_columns(schema),
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


def _text_columns(schema: Any) -> list[str]:
    """Columns that gain from a dictionary when rows are clustered: text and bytes of one value a row.

    Positions in a dictionary take odd numbers of bits, so equal lists look different to the compressor, which finds
    them where ids are written in full. See docs/clustered-logs.md.
    """
    from pyarrow import types

    return [field.name for field in schema if is_text_or_bytes(field.type) or types.is_dictionary(field.type)]


def _check_apart(options: ClusterOptions, log: LogFiles) -> None:
    """What is read is not replaced, and what is written is not read as part of the log the next time."""
    output = options.output.resolve()
    folders = [path for path in options.inputs if path.is_dir() and output.is_relative_to(path.resolve())]
    inside = [path for path in log.files if path.resolve().is_relative_to(output)]
    for path in (*folders, *inside):
        raise StoreError(f"{options.output} and the log {path} are one in the other: choose an output beside the log")


def _check_row_groups(options: ClusterOptions, log: LogFiles) -> None:
    """Refuse row groups that memory cannot hold; those that nobody asked for are small enough."""
    limit = ROW_GROUP_SHARE * options.memory_bytes
    needed = min(options.row_group_rows or 0, log.rows) * log.row_bytes
    if needed > limit:
        raise RecipeError(
            f"--row-group-rows {options.row_group_rows} takes about {needed:.0f} bytes in memory, of which --memory "
            f"{options.memory_bytes} leaves {limit:.0f} for a row group: give at most --row-group-rows "
            f"{int(limit / log.row_bytes)}, or at least --memory {math.ceil(needed / ROW_GROUP_SHARE)}"
        )


def _check_disk(output: Path, log: LogFiles) -> None:
    """Refuse what the disk surely cannot hold: the runs, the output, and what it takes to order rows."""
    folder = next(parent for parent in output.resolve().parents if parent.exists())
    needed = int(log.rows * (log.packed_row_bytes + BYTES_TO_RANK_ROW)) + log.num_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"{folder} has {free} bytes free, but clustering {log.rows} rows needs about {needed} there: make room, or "
            "choose an output on a larger disk"
        )
