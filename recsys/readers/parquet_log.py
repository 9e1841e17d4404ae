"""Logs in Parquet: row groups dealt to ranks in contiguous, nearly equal shares."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError
from windrow.comm.splits import near_equal_split
from windrow.recsys.readers.raw_block import RawBlock

__all__ = ["ParquetLog"]

BATCH_ROWS = 1 << 16
"""Rows decoded at a time."""


class ParquetLog:
    """Reads Parquet files.

    Args:
        files: their schemas may differ in columns that nobody asks for.
        columns: to read; those that a file lacks are left out of its blocks. Columns of structs are read whole.
        batch_rows: rows decoded at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, batch_rows: int = BATCH_ROWS
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(columns)
        self._batch_rows = batch_rows

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        counts = []
        for file in self._files:
            with _open(file) as opened:
                counts.append(opened.num_row_groups)
                if opened.metadata.num_rows == 0:
                    raise DataError(f"{file} has no rows: write it again, or leave it out of paths")
        groups = [
            (file, group) for file, count in zip(self._files, counts, strict=True) for group in range(count)
        ]
        bounds = near_equal_split(len(groups), size)
        own = groups[bounds[rank] : bounds[rank + 1]]
        for file in self._files:
            mine = [group for path, group in own if path == file]
            if mine:
                yield from self._read(file, mine)

    def _read(self, file: Path, groups: Sequence[int]) -> Iterator[RawBlock]:
        import pyarrow as pa

        with _open(file) as opened:
            names = tuple(opened.schema_arrow.names)
            wanted = [name for name in self._columns if name in names]
            for group in groups:
                first = 0
                try:
                    for batch in opened.iter_batches(self._batch_rows, row_groups=[group], columns=wanted):
                        yield RawBlock(
                            batch=batch,
                            file=file,
                            columns_in_file=names,
                            unit=f"row group {group}, row",
                            first=first,
                            file_share=(group + 1) / opened.num_row_groups,
                        )
                        first += batch.num_rows
                except (OSError, pa.ArrowInvalid) as error:
                    raise DataError(
                        f"{file}, row group {group}, at or after row {first}: cannot be read ({error}): write the "
                        "file again"
                    ) from error


def _open(file: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{file}: no readable Parquet file ({error}): correct the path or write it again"
        ) from error
