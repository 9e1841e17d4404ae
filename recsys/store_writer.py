"""Write a prepared log: see `windrow.recsys.store` for what the folder looks like."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from windrow.partition.manifest import checksum
from windrow.recsys.repeats import leave_out_repeats
from windrow.recsys.store import ROW_GROUP_ROWS
from windrow.recsys.store_manifest import StoreFile

__all__ = ["SplitWriter", "describe_store_file"]

FILE_ROWS = 1 << 22
"""Samples of a file: 64 row groups."""


class SplitWriter:
    """Writes the samples of one split, in full row groups. A context manager.

    Args:
        store: folder of the store.
        name: of the split.
        row_group_rows: samples of a row group.
        file_rows: samples of a file, a multiple of these.
        shard_rows: samples of each file instead, where sessions were dealt to files; only the last row group of a
            file has fewer samples than the others then.
        clustered: whether lists that follow one another are often equal.
        repeats: columns of features in which what the sample before has is left out, each with the column of its
            weights, empty for none: see `windrow.recsys.repeats`.
    """

    def __init__(
        self,
        store: Path,
        name: str,
        *,
        row_group_rows: int = ROW_GROUP_ROWS,
        file_rows: int = FILE_ROWS,
        shard_rows: Sequence[int] = (),
        clustered: bool = False,
        repeats: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._store = store
        self._name = name
        self._row_group_rows = row_group_rows
        self._file_rows = file_rows
        self._shard_rows = tuple(shard_rows)
        self._clustered = clustered
        self._repeats = tuple(repeats)
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._room = 0
        self._writer: Any = None
        self._files: list[tuple[Path, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._end_file()
        elif self._writer is not None:
            self._writer.close()

    def write(self, batch: Any) -> None:
        """Add samples.

        Args:
            batch: ``pyarrow.RecordBatch``, of one schema in all calls.
        """
        while batch.num_rows:
            if self._room == 0:
                self._room = self._shard_rows[len(self._files)] if self._shard_rows else self._file_rows
            part = batch.slice(0, self._room)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._room -= part.num_rows
            while self._waiting_rows >= self._row_group_rows:
                self._flush(self._row_group_rows)
            if self._room == 0:
                self._end_file()
            batch = batch.slice(part.num_rows)

    def files(self) -> tuple[StoreFile, ...]:
        """What was written, after the block has ended: reads all of it for the checksums."""
        return tuple(describe_store_file(self._store, path, rows) for path, rows in self._files)

    def _flush(self, rows: int) -> None:
        import pyarrow as pa

        waiting = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            self._start_file(waiting.schema)
        self._writer.write_table(
            leave_out_repeats(waiting.slice(0, rows), self._repeats), row_group_size=rows
        )
        path, before = self._files[-1]
        self._files[-1] = (path, before + rows)
        rest = waiting.slice(rows)
        self._waiting, self._waiting_rows = rest.to_batches(), rest.num_rows

    def _end_file(self) -> None:
        if self._waiting_rows:
            self._flush(self._waiting_rows)
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _start_file(self, schema: Any) -> None:
        from pyarrow import parquet

        path = self._store / self._name / f"part-{len(self._files):05d}.parquet"
        path.parent.mkdir(exist_ok=True)
        # Of what Parquet offers, this decodes fastest where it is at all small: on click logs of 20 ids and a list, a
        # quarter more CPU time than no compression, at less than a third of the bytes. Where equal lists follow one
        # another, lz4 finds them if they are written in full (positions in a dictionary take odd numbers of bits): as
        # many bytes as with a dictionary, a fifth less time. zstd takes 0.7 of the bytes and 1.15 times as long.
        single = [field.name for field in schema if field.type.num_fields == 0]
        self._writer = parquet.ParquetWriter(
            path,
            schema,
            compression="lz4",
            use_dictionary=single if self._clustered else True,
            write_statistics=False,
            write_page_checksum=True,  # What training reads is checked as it is decoded.
        )
        self._files.append((path, 0))


def describe_store_file(store: Path, path: Path, rows: int) -> StoreFile:
    """Make the entry of a file that was just written.

    Args:
        store: folder of the store.
        path: the file.
        rows: that it holds.
    """
    return StoreFile(
        name=path.relative_to(store).as_posix(),
        rows=rows,
        num_bytes=path.stat().st_size,
        sha256=checksum(path),
    )
