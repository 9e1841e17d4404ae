"""The decoded row groups of a prepared split, the ones used last kept in memory."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError
from windrow.comm.splits import offsets_from_counts
from windrow.recsys.decoded_columns import ColumnChoice, RowGroup, decoded
from windrow.recsys.store import LogSplit
from windrow.recsys.store_manifest import CURE

__all__ = ["RowGroups"]


class RowGroups:
    """Reads row groups of a split's files, which are memory-mapped while one is read.

    Args:
        split: of a prepared store.
        choice: what is read.
        memory_bytes: decoded row groups kept for later: of those that fit together, the ones used last.

    Raises:
        StoreError: a file has no readable footer, or another number of rows than the manifest says.
    """

    def __init__(self, split: LogSplit, choice: ColumnChoice, *, memory_bytes: int) -> None:
        self._choice = choice
        self._memory_bytes = memory_bytes
        footers = [_footer(path, rows) for path, rows in zip(split.files, split.file_rows, strict=True)]
        self._places = [
            (path, footer, group)
            for path, footer in zip(split.files, footers, strict=True)
            for group in range(footer.num_row_groups)
        ]
        self._offsets = offsets_from_counts(
            [footer.row_group(group).num_rows for _, footer, group in self._places]
        )
        self._kept: OrderedDict[int, RowGroup] = OrderedDict()
        self._kept_bytes = 0
        # A reader that was closed early may still be decoding when the next epoch begins.
        self._lock = threading.Lock()

    def covering(self, start: int, stop: int) -> list[tuple[RowGroup, int, int]]:
        """The row groups that hold some rows.

        Args:
            start: first row, number in the split.
            stop: first row after; more than `start`.

        Returns:
            ``(row group, first row in it, first row after)``, in order.

        Raises:
            StoreError: a row group cannot be decoded; names file and row group.
        """
        found = []
        number = bisect_right(self._offsets, start) - 1
        while start < stop:
            first, end = self._offsets[number], min(stop, self._offsets[number + 1])
            if start < end:
                found.append((self._group(number), start - first, end - first))
            start = end
            number += 1
        return found

    def _group(self, number: int) -> RowGroup:
        with self._lock:
            group = self._kept.get(number)
            if group is None:
                group = self._decode(number)
                self._kept[number] = group
                self._kept_bytes += group.num_bytes
            self._kept.move_to_end(number)
            while self._kept_bytes > self._memory_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.num_bytes
            return group

    def _decode(self, number: int) -> RowGroup:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        path, footer, group = self._places[number]
        try:
            with ParquetFile(path, metadata=footer, memory_map=True, page_checksum_verification=True) as file:
                return decoded(file.read_row_group(group, columns=self._choice.columns()), self._choice)
        except (ArrowException, OSError, KeyError, ValueError) as error:
            raise StoreError(f"{path}, row group {group}: {error}; {CURE}") from error


def _footer(path: Path, rows: int) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        footer = read_metadata(path)
    except (ArrowException, OSError) as error:
        raise StoreError(f"{path}: {error}; {CURE}") from error
    if footer.num_rows != rows:
        raise StoreError(f"{path} has {footer.num_rows} rows, expected {rows}: {CURE}")
    return footer
