"""Rows in order written as Parquet files, one for each shard, whose row groups are full, or hold whole sessions.

rows       a a a b b c c c c d      at most 4 rows to a row group
groups     a a a | b b | c c c c | d
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["ShardWriter"]


class ShardWriter:
    """Writes the rows of one shard after another, shard k to ``part-k.parquet``. A context manager.

    Args:
        folder: to write to; made with the first file.
        shard_rows: rows of each shard, perhaps without end; one without rows has no file.
        row_group_rows: the most rows of a row group.
        by: column of sessions, none of which is cut between row groups unless it is larger than one; empty to cut
            anywhere.

    Attributes:
        written: files so far, and the rows of each.
        row_groups: how many were written.
    """

    def __init__(self, folder: Path, *, shard_rows: Iterable[int], row_group_rows: int, by: str = "") -> None:
        self._folder = folder
        self._shards = enumerate(shard_rows)
        self._row_group_rows = row_group_rows
        self._by = by
        self._shard = self._left = 0
        self._waiting: list[Any] = []
        self._writer: Any = None
        self.written: list[tuple[Path, int]] = []
        self.row_groups = 0

    def _stored(self, rows: Any) -> Any:
        """What is written of a ``pyarrow.Table``, the rows of a row group."""
        return rows

    def _options(self, schema: Any) -> dict[str, Any]:
        """Options of ``pyarrow.parquet.ParquetWriter`` for files of a schema."""
        del schema
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._waiting:
            self._flush(to_end=True)
        elif self._writer is not None:
            self._writer.close()

    def write(self, batch: Any) -> None:
        """Add the next rows.

        Args:
            batch: ``pyarrow.RecordBatch``, of one schema in all calls.
        """
        while batch.num_rows:
            while not self._left:
                self._shard, self._left = next(self._shards)
            part = batch.slice(0, self._left)
            self._waiting.append(part)
            self._left -= part.num_rows
            self._flush(to_end=self._left == 0)
            batch = batch.slice(part.num_rows)

    def _flush(self, *, to_end: bool) -> None:
        """Write the row groups that are known to be full; at the end of a shard all of them, and end the file."""
        rows = sum(batch.num_rows for batch in self._waiting)
        # A group is full when the row after it is known: it tells whether a session ends with the group.
        if rows > self._row_group_rows or to_end:
            import pyarrow as pa

            waiting = pa.Table.from_batches(self._waiting)
            starts = _session_starts(waiting.column(self._by)) if self._by else np.arange(rows)
            first = 0
            while rows - first > self._row_group_rows or (to_end and first < rows):
                end = self._end(starts, first, rows)
                self._write_group(waiting.slice(first, end - first))
                first = end
            self._waiting = waiting.slice(first).to_batches() if first < rows else []
        if to_end:
            self._writer.close()
            self._writer = None

    def _end(self, starts: npt.NDArray[np.int64], first: int, rows: int) -> int:
        """Where the row group that begins at row `first` ends."""
        most = first + self._row_group_rows
        if most >= rows:
            return rows
        end = int(starts[np.searchsorted(starts, most, side="right") - 1])
        # One session may fill the group and go on behind it.
        return end if end > first else most

    def _write_group(self, rows: Any) -> None:
        from pyarrow import parquet

        stored = self._stored(rows)
        if self._writer is None:
            path = self._folder / f"part-{self._shard:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            self._writer = parquet.ParquetWriter(path, stored.schema, **self._options(stored.schema))
            self.written.append((path, 0))
        self._writer.write_table(stored, row_group_size=rows.num_rows)
        path, before = self.written[-1]
        self.written[-1] = (path, before + rows.num_rows)
        self.row_groups += 1


def _session_starts(sessions: Any) -> npt.NDArray[np.int64]:
    """Rows at which a session begins, where those of a session stand together; each null is a session of its own."""
    from pyarrow import compute

    plain = sessions.combine_chunks()
    differs = compute.not_equal(plain.slice(1), plain.slice(0, max(len(plain) - 1, 0)))
    changes = differs.fill_null(fill_value=True).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changes) + 1])
