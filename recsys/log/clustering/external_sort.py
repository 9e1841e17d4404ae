"""Rows of a log sorted out of core: DuckDB finds the rank of each row, and a sort in two passes puts whole rows there.

Ranks come from two columns alone, a few dozen bytes a row. Whole rows are not sorted by DuckDB: what it holds while it
sorts rows with lists grows with the log (2.0 fails with 3 GB of them and a limit of 600 MB), and it lacks some types::

    log      session a b a b     ->  hash, time  ->  ranks 0 2 1 3  (file of int64, in the order of the log)

Since ranks are known, so is the merge::

    log, in memory-sized blocks   ranks 5 0 3 | 4 1 2         bucket k: ranks k * bucket_rows and up
    runs on disk, bucket by bucket      0 | 3 5     1 2 | 4
    bucket 0 of all runs, sorted        0 1 2
    bucket 1 of all runs, sorted        3 4 5

A bucket has a number of rows and not a range of hashes, so many rows of one session do not make it larger. Rows keep
their Arrow types throughout: nothing but whole rows is moved.

Sessions stand in the order of a hash, as in RecD (Zhao et al., MLSys 2023, arXiv 2211.05239: O1 deals sessions to
shards by a hash, O2 sorts rows by session and time). This one is the same in every version of DuckDB, unlike its
function ``hash``, so that equal logs give equal files; and who reads part of the rows has a fair share of all sessions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.log.duckdb_sql import sql_text

__all__ = ["rank_sessions", "sort_rows", "with_hash", "write_ranks"]

READ_ROWS = 1 << 16


def with_hash(rows: str) -> str:
    """SQL for rows with a column `hash` of their `session`: whole numbers, text or bytes.

    It is the last 8 bytes of the MD5 of its text, lowest first, as an unsigned number. A row without a session, by its
    number in `row`, is a session of its own.
    """
    text = "coalesce(CAST(session AS VARCHAR), concat('row ', row))"
    return f"(SELECT *, md5_number_lower({text}) AS hash FROM ({rows}))"


def rank_sessions(
    database: Any, rows: str, work: Path, *, cluster: bool
) -> tuple[npt.NDArray[np.int64], dict[tuple[int, int], int]]:
    """Rank rows by (shard, hash of the session, session, time, row), or by (shard, time, row).

    Args:
        database: ``duckdb.DuckDBPyConnection``.
        rows: SQL with the columns `session`, `time` (rows without one come last), `row`, `split` and `shards`: the
            number of shards of the row's split; its own shard is hash mod `shards`.
        work: folder for the ranks.
        cluster: whether sessions stand together in their shard.

    Returns:
        The ranks, as `write_ranks` gives them, and the rows of each (split, shard) that has some, in this order.
    """
    dealt = f"(SELECT *, CAST(hash % shards AS INTEGER) AS shard FROM {with_hash(rows)})"
    counts = database.execute(f"SELECT split, shard, count(*) FROM {dealt} GROUP BY split, shard ORDER BY split, shard")
    found = {(split, shard): count for split, shard, count in counts.fetchall()}
    within = "hash, session, " if cluster else ""
    return write_ranks(database, f"SELECT row FROM {dealt} ORDER BY shard, {within}time NULLS LAST, row", work), found


def write_ranks(database: Any, order: str, work: Path) -> npt.NDArray[np.int64]:
    """[rows] places of rows 0, 1, ... in an order, SQL whose column `row` holds them so; a mapped file in `work`."""
    from pyarrow import parquet

    ordered, inverse, path = work / "ordered.parquet", work / "inverse.parquet", work / "ranks"
    database.execute(f"COPY ({order}) TO {sql_text(ordered)} (FORMAT parquet, COMPRESSION lz4_raw)")
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


RUN_SHARE, BUCKET_SHARE = 0.15, 0.06
"""Of the memory. Of each up to three copies exist at a time: as read, joined, sorted or encoded."""
MOST_PIECE_BYTES = 1 << 30
"""Positions in one array of text are 32-bit numbers."""


def sort_rows(
    batches: Iterable[Any],
    ranks: npt.NDArray[np.int64],
    *,
    row_bytes: float,
    memory_bytes: int,
    folder: Path,
    advance: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """Put rows in the order of their ranks.

    Args:
        batches: ``pyarrow.RecordBatch``, the rows in the order of the log.
        ranks: [rows] of each.
        row_bytes: of a row in memory, in the mean.
        memory_bytes: that may be held; more is where the rows of a bucket are several times larger than the mean.
        folder: for runs, named ``run-0``, ``run-1``, ...
        advance: told how many rows the runs have so far.

    Yields:
        ``pyarrow.RecordBatch`` of the next ranks.
    """
    run_bytes, bucket_bytes = (min(share * memory_bytes, MOST_PIECE_BYTES) for share in (RUN_SHARE, BUCKET_SHARE))
    edges = np.arange(0, len(ranks), max(1, int(bucket_bytes / row_bytes)))
    runs: list[Path] = []
    first = 0
    for rows in _blocks(batches, run_bytes):
        stop = first + rows.num_rows
        runs.append(folder / f"run-{len(runs)}")
        _write_run(runs[-1], rows, np.array(ranks[first:stop]), edges)
        del rows
        if advance is not None:
            advance(stop)
        first = stop
    for bucket in range(len(edges)):
        yield _read_bucket(runs, bucket)


def _blocks(batches: Iterable[Any], most_bytes: float) -> Iterator[Any]:
    """Batches joined until they are as large as is allowed."""
    waiting: list[Any] = []
    waiting_bytes = 0
    for batch in batches:
        if waiting and waiting_bytes + batch.nbytes > most_bytes:
            yield _joined(waiting)
            waiting_bytes = 0
        waiting.append(batch)
        waiting_bytes += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _write_run(path: Path, rows: Any, ranks: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]) -> None:
    """Write rows sorted by rank: record batch k holds what is of bucket k, and its last column is the rank."""
    import pyarrow as pa

    order = np.argsort(ranks)
    schema = rows.schema.append(pa.field("", pa.int64()))
    with pa.ipc.new_file(path, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for start, stop in pairwise([*np.searchsorted(ranks[order], edges), len(order)]):
            chosen = order[start:stop]
            piece = [*rows.take(pa.array(chosen)).columns, pa.array(ranks[chosen])]
            writer.write_batch(pa.RecordBatch.from_arrays(piece, schema=schema))


def _read_bucket(runs: Sequence[Path], bucket: int) -> Any:
    """The rows of a bucket by rank, without the column of ranks."""
    import pyarrow as pa

    pieces = []
    for run in runs:
        # Opened each time: a log far larger than memory has more runs than a process may open files.
        with pa.OSFile(str(run)) as source:
            pieces.append(pa.ipc.open_file(source).get_batch(bucket))
    rows = _joined(pieces)
    *places, rank = range(rows.num_columns)
    return rows.select(places).take(pa.array(np.argsort(rows.column(rank).to_numpy())))


def _joined(batches: list[Any]) -> Any:
    """Batches as a single one, which rows are taken from without joining it anew each time. The list is emptied."""
    import pyarrow as pa

    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    batches.clear()
    if len(joined) > 1:
        raise DataError("neighbouring rows hold more than 2 GiB in one column: sort them with less memory at a time")
    return joined[0]
