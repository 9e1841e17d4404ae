"""Rows in order written as Parquet files, one for each shard, in full row groups."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

__all__ = ["ShardWriter"]


class ShardWriter:
    """Writes the rows of one shard after another, shard k to ``part-k.parquet``. A context manager.

    Args:
        folder: to write to; made with the first file.
        shard_rows: rows of each shard, perhaps without end; one without rows has no file.
        row_group_rows: rows of a row group; the last one of a file may have fewer.
        first: number of the first shard.

    Attributes:
        written: files so far, and the rows of each.
        row_groups: how many were written.
    """

    def __init__(self, folder: Path, *, shard_rows: Iterable[int], row_group_rows: int, first: int = 0) -> None:
        self._folder = folder
        self._shards = enumerate(shard_rows, first)
        self._row_group_rows = row_group_rows
        self._shard = self._left = self._waiting_rows = 0
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
            self._write_group()
        self._close()

    def write(self, batch: Any) -> None:
        """Add the next rows: a ``pyarrow.RecordBatch``, of one schema in all calls."""
        while batch.num_rows:
            while not self._left:
                self._shard, self._left = next(self._shards)
            part = batch.slice(0, min(self._left, self._row_group_rows - self._waiting_rows))
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._left -= part.num_rows
            if not self._left or self._waiting_rows == self._row_group_rows:
                self._write_group()
            if not self._left:
                self._close()
            batch = batch.slice(part.num_rows)

    def _write_group(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        stored = self._stored(pa.Table.from_batches(self._waiting))
        if self._writer is None:
            path = self._folder / f"part-{self._shard:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            self._writer = parquet.ParquetWriter(path, stored.schema, **self._options(stored.schema))
            self.written.append((path, 0))
        self._writer.write_table(stored, row_group_size=self._waiting_rows)
        path, before = self.written[-1]
        self.written[-1] = (path, before + self._waiting_rows)
        self.row_groups += 1
        self._waiting, self._waiting_rows = [], 0

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
