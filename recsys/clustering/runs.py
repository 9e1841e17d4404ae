"""Rows brought into the order of their ranks, out of core: a sort in two passes whose merge is known in advance.

    log, in memory-sized blocks   ranks 5 0 3 | 4 1 2         bucket k: ranks k * bucket_rows and up
    runs on disk, bucket by bucket      0 | 3 5     1 2 | 4
    bucket 0 of all runs, sorted        0 1 2
    bucket 1 of all runs, sorted        3 4 5

A bucket has a number of rows and not a range of hashes, so one that is too large for memory cannot be, however many
rows a session has. Rows keep their Arrow types throughout: nothing but whole rows is moved.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["read_buckets", "write_runs"]


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
        run_bytes: of a block in memory. Twice as much is held while one is sorted.
        folder: to write to.

    Yields:
        File of the run, and rows read so far. In it, record batch k holds what bucket k has of this block, and the
        last column is the rank.
    """
    first = waiting_bytes = 0
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= run_bytes:
            stop = first + sum(part.num_rows for part in waiting)
            path = folder / f"run-{first}"
            _write_run(path, waiting, np.array(ranks[first:stop]), -(-len(ranks) // bucket_rows), bucket_rows)
            yield path, stop
            first, waiting_bytes = stop, 0
    if waiting:
        path = folder / f"run-{first}"
        _write_run(path, waiting, np.array(ranks[first:]), -(-len(ranks) // bucket_rows), bucket_rows)
        yield path, len(ranks)


def read_buckets(runs: Sequence[Path], num_buckets: int) -> Iterator[Any]:
    """Read the buckets of all runs in order.

    Args:
        runs: from `write_runs`.
        num_buckets: rows over rows of a bucket, rounded up.

    Yields:
        ``pyarrow.RecordBatch`` of the next ranks, in their order, without the column of ranks.
    """
    import pyarrow as pa

    for bucket in range(num_buckets):
        pieces = []
        for run in runs:
            # Opened each time: a log far larger than memory has more runs than a process may open files.
            with pa.OSFile(str(run)) as source:
                pieces.append(pa.ipc.open_file(source).get_batch(bucket))
        rows = _joined(pieces)
        pieces.clear()
        order = np.argsort(rows.column(rows.num_columns - 1).to_numpy())
        rows = rows.select(list(range(rows.num_columns - 1)))
        yield rows.take(pa.array(order))


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


def _joined(batches: Sequence[Any]) -> Any:
    """Batches of one schema as a single one, which rows are taken from without joining it anew each time."""
    import pyarrow as pa

    columns = [
        pa.concat_arrays([batch.column(place) for batch in batches])
        for place in range(len(batches[0].schema))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)
