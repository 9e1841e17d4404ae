"""Logs in libfm's and libsvm's layout: a label and pairs, as in ``-1 204:1 4798:1 5041:0.5``.

As columns, two views of the same line::

    label   0                                 -1 counts as 0
    field_0 204, field_1 4798, field_2 5041   indices by position, where every line has as many pairs
    ids     [204, 4798, 5041]                 all indices as one list, and
    values  [1.0, 1.0, 0.5]                   what stands behind the colons
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.ordered_map import ordered_map
from windrow.recsys.prefetch import prefetch
from windrow.recsys.readers.libfm_kernels import parse_libfm
from windrow.recsys.readers.raw_block import RawBlock
from windrow.recsys.readers.text_blocks import BLOCK_BYTES, TextBlock, text_blocks

__all__ = ["FIELD_PREFIX", "IDS_COLUMN", "VALUES_COLUMN", "LibfmLog"]

FIELD_PREFIX = "field_"
IDS_COLUMN = "ids"
VALUES_COLUMN = "values"


class LibfmLog:
    """Reads libfm files.

    Args:
        files: plain, or ``.gz``.
        columns: ``label``, ``ids``, ``values``, ``field_0``, ``field_1``, ... Fields need the same number of pairs
            in every line of all files.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(columns)
        self._by_position = any(name.startswith(FIELD_PREFIX) for name in columns)
        self._block_bytes = block_bytes

    @property
    def num_bytes(self) -> int:
        """Size of the files on disk."""
        return sum(file.stat().st_size for file in self._files)

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """See `LogReader.batches`."""
        blocks = text_blocks(self._files, rank=rank, size=size, block_bytes=self._block_bytes)
        yield from ordered_map(self._parse, (block for _, block in prefetch(blocks)))

    def _parse(self, block: TextBlock) -> RawBlock:
        import pyarrow as pa

        capacity = block.data.count(b":")
        labels = np.empty(block.num_lines)
        offsets = np.empty(block.num_lines + 1, np.int64)
        ids = np.empty(capacity, np.int64)
        weights = np.empty(capacity, np.float32)
        line, position = parse_libfm(np.frombuffer(block.data, np.uint8), labels, offsets, ids, weights)
        if line >= 0:
            text = block.data[max(position - 10, 0) : position + 10].decode("utf-8", "replace")
            raise DataError(
                f"{block.file}, line {block.first_line + line}: not understood near {text!r}; expected a label "
                "and pairs index:value with blanks between them"
            )
        labels[labels == -1] = 0
        found: dict[str, Any] = {"label": pa.array(labels)}
        if self._by_position:
            found |= self._fields(block, offsets, ids)
        in_file = (*found, IDS_COLUMN, VALUES_COLUMN)
        if IDS_COLUMN in self._columns:
            found[IDS_COLUMN] = _lists(offsets, ids)
        if VALUES_COLUMN in self._columns:
            found[VALUES_COLUMN] = _lists(offsets, weights)
        wanted = {name: array for name, array in found.items() if name in self._columns}
        return RawBlock(
            batch=pa.RecordBatch.from_pydict(wanted),
            file=block.file,
            columns_in_file=in_file,
            unit="line",
            first=block.first_line,
            file_share=block.file_share,
        )

    @staticmethod
    def _fields(
        block: TextBlock, offsets: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        import pyarrow as pa

        lengths = np.diff(offsets)
        other = np.flatnonzero(lengths != lengths[0])
        if len(other):
            line = block.first_line + int(other[0])
            raise DataError(
                f"{block.file}, line {line}: {lengths[other[0]]} pairs, but line {block.first_line} has {lengths[0]}; "
                f"columns {FIELD_PREFIX}0 ... need as many in every line: read column {IDS_COLUMN!r} with "
                "multi_hot = true instead"
            )
        matrix = ids[: offsets[-1]].reshape(len(lengths), -1)
        return {
            f"{FIELD_PREFIX}{field}": pa.array(np.ascontiguousarray(matrix[:, field]))
            for field in range(matrix.shape[1])
        }


def _lists(offsets: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values[: offsets[-1]]))
