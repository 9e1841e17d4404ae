"""Rows in order written as Parquet files whose row groups hold whole sessions.

rows       a a a b b c c c c d      at most 4 rows to a row group
groups     a a a | b b | c c c c | d
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.log_files import plain_sessions

__all__ = ["GroupWriter"]

ZSTD_LEVEL = 3
"""Higher levels take twice the time and more for a twentieth of the bytes; see docs/clustered-logs.md."""
PAGE_BYTES = 1 << 20
"""Of a page, before compression. Within a page repeats are found: a 64 KiB page costs a tenth more bytes."""


class GroupWriter:
    """Writes the rows of one shard after another, shard k to ``part-k.parquet``. A context manager.

    Args:
        folder: to write to.
        schema: ``pyarrow.Schema`` of the files. Rows may have values where it has dictionaries.
        shard_rows: rows of each shard; one without rows has no file.
        row_group_rows: the most rows of a row group.
        by: column of sessions, none of which is cut between row groups unless it is larger than one; empty to cut
            anywhere.
    """

    def __init__(
        self, folder: Path, schema: Any, *, shard_rows: Sequence[int], row_group_rows: int, by: str
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._row_group_rows = row_group_rows
        self._by = by
        self._shards = [shard for shard in reversed(range(len(shard_rows))) if shard_rows[shard]]
        self._left = [shard_rows[shard] for shard in self._shards]
        self._dictionary = _text_columns(schema)
        self._waiting: list[Any] = []
        self._writer: Any = None
        self._files: list[Path] = []
        self.row_groups = 0
        """Row groups written."""
        self.cut_sessions = 0
        """Sessions that were larger than a row group."""
        self._in_cut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def files(self) -> tuple[Path, ...]:
        """Files written so far."""
        return tuple(self._files)

    def write(self, batch: Any) -> None:
        """Add the next rows.

        Args:
            batch: ``pyarrow.RecordBatch``.

        Raises:
            DataError: a dictionary of the files cannot hold the values of a row group.
        """
        while batch.num_rows:
            part = batch.slice(0, self._left[-1])
            self._waiting.append(part)
            self._left[-1] -= part.num_rows
            self._flush(to_end=self._left[-1] == 0)
            batch = batch.slice(part.num_rows)

    def _flush(self, *, to_end: bool) -> None:
        """Write the row groups that are known to be full; at the end of a shard all of them, and end the file."""
        rows = sum(batch.num_rows for batch in self._waiting)
        # A group is full when the row after it is known: it tells whether a session ends with the group.
        if rows > self._row_group_rows or to_end:
            import pyarrow as pa

            waiting = pa.Table.from_batches(self._waiting)
            starts = self._starts(waiting)
            first = 0
            while rows - first > self._row_group_rows or (to_end and first < rows):
                end = self._end(starts, first, rows)
                self._write_group(waiting.slice(first, end - first))
                first = end
            self._waiting = waiting.slice(first).to_batches() if first < rows else []
        if to_end:
            self._writer.close()
            self._writer = None
            self._left.pop()
            self._shards.pop()

    def _starts(self, waiting: Any) -> npt.NDArray[np.int64]:
        if not self._by:
            return np.arange(waiting.num_rows)
        return _session_starts(waiting.column(self._by))

    def _end(self, starts: npt.NDArray[np.int64], first: int, rows: int) -> int:
        """Where the row group that begins at row `first` ends."""
        most = first + self._row_group_rows
        if most >= rows:
            self._in_cut = False
            return rows
        end = int(starts[np.searchsorted(starts, most, side="right") - 1])
        if end > first:
            self._in_cut = False
            return end
        # One session fills the group and goes on behind it.
        self.cut_sessions += not self._in_cut
        self._in_cut = True
        return most

    def _write_group(self, rows: Any) -> None:
        from pyarrow import parquet

        if self._writer is None:
            path = self._folder / f"part-{self._shards[-1]:05d}.parquet"
            self._writer = parquet.ParquetWriter(
                path,
                self._schema,
                compression="zstd",
                compression_level=ZSTD_LEVEL,
                use_dictionary=self._dictionary,
                data_page_size=PAGE_BYTES,
            )
            self._files.append(path)
        # In one piece: a page ends with each piece.
        self._writer.write_table(self._as_stored(rows.combine_chunks()), row_group_size=rows.num_rows)
        self.row_groups += 1

    def _as_stored(self, rows: Any) -> Any:
        import pyarrow as pa

        try:
            return rows.cast(self._schema)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"a row group of {rows.num_rows} rows has too many different values for a dictionary of the log "
                f"({error}): write the log with wider positions in dictionaries, or lower --row-group-rows"
            ) from error


def _session_starts(sessions: Any) -> npt.NDArray[np.int64]:
    """Rows at which a session begins, where those of a session stand together; each null is a session of its own."""
    from pyarrow import ChunkedArray, compute

    plain = plain_sessions(sessions)
    if isinstance(plain, ChunkedArray):
        plain = plain.combine_chunks()
    differs = compute.not_equal(plain.slice(1), plain.slice(0, max(len(plain) - 1, 0)))
    changes = differs.fill_null(fill_value=True).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _text_columns(schema: Any) -> list[str]:
    """Columns that gain from a dictionary when rows are clustered: text and bytes of one value a row.

    Positions in a dictionary take odd numbers of bits, so equal lists look different to the compressor, which finds
    them where ids are written in full. See docs/clustered-logs.md.
    """
    from pyarrow import types

    kinds = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
    )
    return [
        field.name
        for field in schema
        if any(is_kind(field.type) for is_kind in kinds) or types.is_dictionary(field.type)
    ]
