"""Rows of a log sorted out of core: DuckDB finds the rank of each row, and a sort in two passes puts whole rows there.

Ranks come from two columns alone, a few dozen bytes a row. Whole rows are not sorted by DuckDB: what it holds while it
sorts rows with lists grows with the log (2.0 fails with 3 GB of them and a limit of 600 MB), and it lacks some types::

    log      session a b a b     ->  hash, time  ->  ranks 0 2 1 3  (file of int64, in the order of the log)

Since ranks are known, so is the merge::

    log, in memory-sized blocks   ranks 5 0 3 | 4 1 2         bucket k: ranks k * bucket_rows and up
    runs on disk, bucket by bucket      0 | 3 5     1 2 | 4
    bucket 0 of all runs, sorted        0 1 2
    bucket 1 of all runs, sorted        3 4 5

A bucket has a number of rows and not a range of hashes, so many rows of one session do not make it larger. Where rows
themselves are large, it is read in parts. Rows keep their Arrow types throughout: nothing but whole rows is moved.

Sessions stand in the order of a hash. RecD (Zhao et al., MLSys 2023, arXiv 2211.05239) deals log messages to shards by
a hash of the session (its O1), and sorts the rows of a table by session and time (its O2). Neither needs a particular
hash. This one is the same in every version of DuckDB, unlike its function ``hash``, so that equal logs give equal
files. Sorting by it deals sessions out at random, however they were numbered: who reads part of the rows has a fair
share of all sessions.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.log.clustering.log_files import LogFiles, plain_sessions, plain_times
from windrow.recsys.log.duckdb_sql import open_database, sql_text

__all__ = ["SESSION_HASH", "Ranks", "rank_rows", "sort_rows", "write_ranks"]

DUCKDB_SHARE = 0.5
"""Of the memory: DuckDB takes some more than its limit, for what it reads and hands over."""
BYTES_PER_THREAD = 128 << 20
"""Of DuckDB's memory: each thread that sorts needs some of its own."""
READ_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The order of a clustered log."""

    ranks: npt.NDArray[np.int64]
    """[rows] the rank of each row, in the order of the log: a mapped file."""
    shard_rows: tuple[int, ...]
    """Rows of each shard; ranks of a shard follow those of the one before."""
    sessions: int
    """Different sessions, by their 64-bit hashes; rows without a session are sessions of their own."""


def rank_rows(
    log: LogFiles,
    *,
    by: str,
    time: str,
    sort: bool,
    shards: int,
    work: Path,
    memory_bytes: int,
    advance: Callable[[float], None],
) -> Ranks:
    """Find the rank of every row.

    Rows are ordered by (shard, hash of the session, session, time, row), or by (shard, row) without `sort`. A shard is
    hash mod `shards`. Rows without a time come last in their session.

    Args:
        log: to cluster.
        by: column of sessions, which `check_session_type` lets pass.
        time: column of times, which `check_time_type` lets pass; not read without `sort`.
        sort: whether sessions stand together.
        shards: to deal sessions to.
        work: folder for what does not fit into memory, and for the ranks.
        memory_bytes: that may be held.
        advance: told the share of the log that was read.

    Raises:
        DataError: the log cannot be decoded, or the memory is not enough.
        StoreError: the disk is full.
    """
    import duckdb

    limit = int(memory_bytes * DUCKDB_SHARE)
    threads = max(1, min(len(os.sched_getaffinity(0)), limit // BYTES_PER_THREAD))
    ordered = work / "ordered.parquet"
    failed: list[DataError] = []
    try:
        with open_database(f"{limit}B", work / "duckdb", threads=threads) as database:
            database.register("log", _keys(log, by, time if sort else "", advance, failed))
            order = "hash, session, time NULLS LAST, row" if sort else "row"
            database.execute(
                f"COPY (SELECT row, hash, shard FROM (SELECT *, CAST(hash % {shards} AS INTEGER) AS shard FROM "
                f"(SELECT *, {SESSION_HASH} AS hash FROM log)) ORDER BY shard, {order}) "
                f"TO {sql_text(ordered)} (FORMAT parquet, COMPRESSION lz4_raw)"
            )
            scan = f"read_parquet({sql_text(ordered)})"
            counts = dict(database.execute(f"SELECT shard, count(*) FROM {scan} GROUP BY shard").fetchall())
            sessions = database.execute(f"SELECT count(*) FROM (SELECT hash FROM {scan} GROUP BY hash)").fetchall()[0][
                0
            ]
            ranks = write_ranks(database, ordered, work)
    except duckdb.Error as error:
        raise _explained(error, failed, log.rows, limit) from error
    return Ranks(ranks=ranks, shard_rows=tuple(counts.get(shard, 0) for shard in range(shards)), sessions=sessions)


def write_ranks(database: Any, ordered: Path, work: Path) -> npt.NDArray[np.int64]:
    """Turn an order into ranks.

    Args:
        database: ``duckdb.DuckDBPyConnection``.
        ordered: Parquet file whose column ``row`` holds 0, 1, ... in the order wanted; removed.
        work: folder for the ranks.

    Returns:
        The place of row 0, of row 1, ...: a mapped file.
    """
    from pyarrow import parquet

    inverse, path = work / "inverse.parquet", work / "ranks"
    database.execute(
        "COPY (SELECT rank FROM (SELECT row, row_number() OVER () - 1 AS rank FROM "
        f"read_parquet({sql_text(ordered)})) ORDER BY row) TO {sql_text(inverse)} "
        "(FORMAT parquet, COMPRESSION lz4_raw)"
    )
    ordered.unlink()
    # Plain numbers, of which parts can be read.
    with parquet.ParquetFile(inverse) as file, path.open("wb") as target:
        for batch in file.iter_batches(READ_ROWS):
            target.write(batch.column(0).to_numpy())
    inverse.unlink()
    return np.memmap(path, np.int64, "r")


def _keys(log: LogFiles, by: str, time: str, advance: Callable[[float], None], failed: list[DataError]) -> Any:
    """A stream of rows with session, time (0 where there is none) and number; what it raises is also noted."""
    import pyarrow as pa

    time_type = plain_times(pa.nulls(0, log.schema.field(time).type)).type if time else pa.int8()
    session_type = plain_sessions(pa.nulls(0, log.schema.field(by).type)).type
    schema = pa.schema([("session", session_type), ("time", time_type), ("row", pa.int64())])

    def batches() -> Iterator[Any]:
        first = 0
        try:
            for batch in log.batches(list(dict.fromkeys([by, time] if time else [by]))):
                rows = batch.num_rows
                times = plain_times(batch.column(time)) if time else pa.array(np.zeros(rows, np.int8))
                numbers = pa.array(np.arange(first, first + rows))
                yield pa.RecordBatch.from_arrays([plain_sessions(batch.column(by)), times, numbers], schema=schema)
                first += rows
                advance(first / log.rows)
        except DataError as error:
            failed.append(error)
            raise

    return pa.RecordBatchReader.from_batches(schema, batches())


def _explained(error: Exception, failed: list[DataError], rows: int, limit_bytes: int) -> Exception:
    """What a user can do about an error of DuckDB's; the error itself where that is nothing."""
    import duckdb

    if failed:
        return failed[0]
    if isinstance(error, duckdb.OutOfMemoryException):
        return DataError(
            f"DuckDB could not order {rows} rows within {limit_bytes} bytes: raise --memory, or make room on the disk "
            f"({error})"
        )
    if isinstance(error, duckdb.IOException):
        return StoreError(
            f"DuckDB could not write what does not fit into memory ({error}): make room on the disk of the output, or "
            "choose an output on a larger one"
        )
    return error


SESSION_HASH = "md5_number_lower(coalesce(CAST(session AS VARCHAR), concat('row ', row)))"
"""SQL for the hash of a column `session` of whole numbers, text or bytes: an unsigned 64-bit integer, the last 8 bytes
of the MD5 of its text, lowest first. A row without a session, by its number in `row`, is a session of its own."""

MOST_PART_BYTES = 1 << 30
"""Positions in one array of text are 32-bit numbers."""
ALL_RANKS = range(np.iinfo(np.int64).max)


def sort_rows(
    batches: Iterable[Any],
    ranks: npt.NDArray[np.int64],
    *,
    bucket_rows: int,
    run_bytes: int,
    folder: Path,
    bucket_bytes: int = MOST_PART_BYTES,
    advance: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """Put rows in the order of their ranks.

    Args:
        batches: ``pyarrow.RecordBatch``, the rows in the order of the log.
        ranks: [rows] of each.
        bucket_rows: rows of a bucket; the last one may have fewer.
        run_bytes: of rows that are sorted at a time, unless one batch alone has more. Twice as much is held.
        folder: for runs, named ``run-0``, ``run-1``, ...
        bucket_bytes: of rows that are merged at a time, one row apart. A bucket that has more is read in parts, which
            takes longer. Three times as much is held.
        advance: told how many rows the runs have so far.

    Yields:
        ``pyarrow.RecordBatch`` of the next ranks.

    Raises:
        DataError: rows do not fit into Arrow's arrays.
    """
    num_buckets = -(-len(ranks) // bucket_rows)
    runs: list[Path] = []
    first = 0
    for block in _blocks(batches, run_bytes):
        stop = first + sum(batch.num_rows for batch in block)
        runs.append(folder / f"run-{len(runs)}")
        _write_run(runs[-1], block, np.array(ranks[first:stop]), num_buckets, bucket_rows)
        if advance is not None:
            advance(stop)
        first = stop
    for bucket in range(num_buckets):
        yield from _read_parts(runs, bucket, ALL_RANKS, bucket_bytes)


def _blocks(batches: Iterable[Any], most_bytes: int) -> Iterator[list[Any]]:
    """Batches in lists that are as large as is allowed."""
    waiting: list[Any] = []
    waiting_bytes = 0
    for batch in batches:
        if waiting and waiting_bytes + batch.nbytes > most_bytes:
            yield waiting
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += batch.nbytes
    if waiting:
        yield waiting


def _write_run(
    path: Path, waiting: list[Any], ranks: npt.NDArray[np.int64], num_buckets: int, bucket_rows: int
) -> None:
    """Write rows sorted by rank: record batch k holds what is of bucket k, and its last column is the rank."""
    import pyarrow as pa

    block = _joined(waiting)
    waiting.clear()
    order = np.argsort(ranks)
    bounds = np.searchsorted(ranks[order], np.arange(num_buckets + 1) * bucket_rows)
    schema = block.schema.append(pa.field("rank", pa.int64()))
    with pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for bucket in range(num_buckets):
            chosen = order[bounds[bucket] : bounds[bucket + 1]]
            rows = block.take(pa.array(chosen))
            writer.write_batch(pa.RecordBatch.from_arrays([*rows.columns, pa.array(ranks[chosen])], schema=schema))


def _read_parts(runs: Sequence[Path], bucket: int, ranks: range, most_bytes: int) -> Iterator[Any]:
    """Rows of a bucket whose ranks are in a range: at once, or their lower half first where they are too large."""
    pieces: list[Any] = []
    held_bytes = 0
    for run in runs:
        pieces.append(_read_piece(run, bucket, ranks))
        held_bytes += pieces[-1].nbytes
        if held_bytes > most_bytes:
            found = np.sort(np.concatenate([_ranks(piece) for piece in pieces]))
            if len(found) > 1:
                pieces.clear()
                middle = int(found[len(found) // 2])
                yield from _read_parts(runs, bucket, range(ranks.start, middle), most_bytes)
                yield from _read_parts(runs, bucket, range(middle, ranks.stop), most_bytes)
                return
    yield _in_order(pieces)


def _read_piece(run: Path, bucket: int, ranks: range) -> Any:
    """What a bucket has of a run, of the ranks in a range."""
    import pyarrow as pa

    # Opened each time: a log far larger than memory has more runs than a process may open files.
    with pa.OSFile(str(run)) as source:
        piece = pa.ipc.open_file(source).get_batch(bucket)
    first, stop = np.searchsorted(_ranks(piece), [ranks.start, ranks.stop])
    if stop - first == piece.num_rows:
        return piece
    # Taken, since a slice would hold the whole piece in memory.
    return piece.take(pa.array(np.arange(first, stop)))


def _ranks(piece: Any) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = piece.column(piece.num_columns - 1).to_numpy()
    return found


def _in_order(pieces: list[Any]) -> Any:
    """The rows of pieces by rank, without the column of ranks. The list is emptied."""
    import pyarrow as pa

    rows = _joined(pieces)
    pieces.clear()
    order = np.argsort(_ranks(rows))
    return rows.select(list(range(rows.num_columns - 1))).take(pa.array(order))


def _joined(batches: Sequence[Any]) -> Any:
    """Batches of one schema as a single one, which rows are taken from without joining it anew each time."""
    import pyarrow as pa

    try:
        columns = [
            pa.concat_arrays([batch.column(place) for batch in batches]) for place in range(len(batches[0].schema))
        ]
    except pa.ArrowInvalid as error:
        rows = sum(batch.num_rows for batch in batches)
        raise DataError(
            f"{rows} rows of the log do not fit into Arrow's arrays at once ({error}): lower --memory, so that fewer "
            "are held at a time"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
