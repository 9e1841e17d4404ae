"""Where each row of a log goes: its rank in the clustered one, found by DuckDB out of core from two columns alone.

    log      session a b a b     ->  hash, time  ->  ranks 0 2 1 3  (file of int64, in the order of the log)

Only sessions, times and numbers of rows are sorted here, a few dozen bytes a row: lists of ids are not, since DuckDB
holds much more memory than its limit says while it sorts rows with lists.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, StoreError
from windrow.recsys.clustering.key_columns import plain_sessions, plain_times
from windrow.recsys.clustering.log_files import LogFiles
from windrow.recsys.clustering.session_order import session_hash
from windrow.recsys.duckdb_sql import open_database, sql_text

__all__ = [
    "Ranks",
    "open_ranks",
    "rank_rows",
    "write_ranks",
]

DUCKDB_SHARE = 0.5
"""Of the memory: DuckDB takes some more than its limit, for what it reads and hands over."""
BYTES_PER_THREAD = 128 << 20
"""Of DuckDB's memory: each thread that sorts needs some of its own."""
READ_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The order of a clustered log."""

    path: Path
    """File of int64: the rank of each row, in the order of the log."""
    shard_rows: tuple[int, ...]
    """Rows of each shard; ranks of a shard follow those of the one before."""
    sessions: int
    """Different sessions, by their 64-bit hashes; rows without a session are sessions of their own."""

    def open(self) -> npt.NDArray[np.int64]:
        """The ranks, [rows], as a mapped file."""
        return open_ranks(self.path)


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
                f"(SELECT *, {session_hash('session', 'row')} AS hash FROM log)) ORDER BY shard, {order}) "
                f"TO {sql_text(ordered)} (FORMAT parquet, COMPRESSION lz4_raw)"
            )
            scan = f"read_parquet({sql_text(ordered)})"
            counts = dict(database.execute(f"SELECT shard, count(*) FROM {scan} GROUP BY shard").fetchall())
            sessions = database.execute(
                f"SELECT count(*) FROM (SELECT hash FROM {scan} GROUP BY hash)"
            ).fetchall()[0][0]
            path = write_ranks(database, ordered, work)
    except duckdb.Error as error:
        raise _explained(error, failed, log.rows, limit) from error
    ordered.unlink()
    return Ranks(
        path=path, shard_rows=tuple(counts.get(shard, 0) for shard in range(shards)), sessions=sessions
    )


def write_ranks(database: Any, ordered: Path, work: Path) -> Path:
    """Turn an order into ranks.

    Args:
        database: ``duckdb.DuckDBPyConnection``.
        ordered: Parquet file whose column ``row`` holds 0, 1, ... in the order wanted.
        work: folder to write to.

    Returns:
        File of int64: the place of row 0, of row 1, ...
    """
    inverse, path = work / "inverse.parquet", work / "ranks"
    database.execute(
        "COPY (SELECT rank FROM (SELECT row, row_number() OVER () - 1 AS rank FROM "
        f"read_parquet({sql_text(ordered)})) ORDER BY row) TO {sql_text(inverse)} "
        "(FORMAT parquet, COMPRESSION lz4_raw)"
    )
    _write_plain(inverse, path)
    inverse.unlink()
    return path


def open_ranks(path: Path) -> npt.NDArray[np.int64]:
    """The ranks of a file that `write_ranks` wrote, mapped: [rows] int64."""
    return np.memmap(path, np.int64, "r")


def _keys(
    log: LogFiles, by: str, time: str, advance: Callable[[float], None], failed: list[DataError]
) -> Any:
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
                yield pa.RecordBatch.from_arrays(
                    [plain_sessions(batch.column(by)), times, numbers], schema=schema
                )
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


def _write_plain(column: Path, plain: Path) -> None:
    """A Parquet file of one column as a file of its numbers, which parts can be read of."""
    from pyarrow import parquet

    with parquet.ParquetFile(column) as file, plain.open("wb") as target:
        for batch in file.iter_batches(READ_ROWS):
            target.write(batch.column(0).to_numpy())
