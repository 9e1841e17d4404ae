"""Rows brought into the order of their ranks, out of core: a sort in two passes whose merge is known in advance.

    log, in memory-sized blocks   ranks 5 0 3 | 4 1 2         bucket k: ranks k * bucket_rows and up
    runs on disk, bucket by bucket      0 | 3 5     1 2 | 4
    bucket 0 of all runs, sorted        0 1 2
    bucket 1 of all runs, sorted        3 4 5

A bucket has a number of rows and not a range of hashes, so many rows of one session do not make it larger. Where rows
themselves are large, it is read in parts. Rows keep their Arrow types throughout: nothing but whole rows is moved.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["read_buckets", "write_runs"]

MOST_PART_BYTES = 1 << 30
"""Positions in one array of text are 32-bit numbers."""
ALL_RANKS = range(np.iinfo(np.int64).max)


def write_runs(
    batches: Iterable[Any],
    ranks: npt.NDArray[np.int64],
    *,
    bucket_rows: int,
    run_bytes: int,
    folder: Path,
) -> Iterator[tuple[Path, int]]:
    """Write blocks of rows, each sorted by rank and cut into buckets.

    Args:
        batches: ``pyarrow.RecordBatch``, the rows in the order of the log.
        ranks: [rows] of each.
        bucket_rows: rows of a bucket; the last one may have fewer.
        run_bytes: of a block in memory, unless one batch alone has more. Twice as much is held while one is sorted.
        folder: to write to.

    Yields:
        File of the run, and rows read so far. In it, record batch k holds what bucket k has of this block, and the
        last column is the rank.

    Raises:
        DataError: a block does not fit into Arrow's arrays.
    """
    first = 0
    for place, block in enumerate(_blocks(batches, run_bytes)):
        stop = first + sum(batch.num_rows for batch in block)
        path = folder / f"run-{place}"
        _write_run(path, block, np.array(ranks[first:stop]), -(-len(ranks) // bucket_rows), bucket_rows)
        yield path, stop
        first = stop


def read_buckets(runs: Sequence[Path], num_buckets: int, most_bytes: int = MOST_PART_BYTES) -> Iterator[Any]:
    """Read the buckets of all runs in order.

    Args:
        runs: from `write_runs`.
        num_buckets: rows over rows of a bucket, rounded up.
        most_bytes: of rows that are read at a time, one row apart. A bucket that has more is read in parts, which takes
            longer. Three times as much is held while they are sorted.

    Yields:
        ``pyarrow.RecordBatch`` of the next ranks, in their order, without the column of ranks.

    Raises:
        DataError: rows do not fit into Arrow's arrays.
    """
    for bucket in range(num_buckets):
        yield from _read_parts(runs, bucket, ALL_RANKS, most_bytes)


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
            writer.write_batch(
                pa.RecordBatch.from_arrays([*rows.columns, pa.array(ranks[chosen])], schema=schema)
            )


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
            pa.concat_arrays([batch.column(place) for batch in batches])
            for place in range(len(batches[0].schema))
        ]
    except pa.ArrowInvalid as error:
        rows = sum(batch.num_rows for batch in batches)
        raise DataError(
            f"{rows} rows of the log do not fit into Arrow's arrays at once ({error}): lower --memory, so that fewer "
            "are held at a time"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
