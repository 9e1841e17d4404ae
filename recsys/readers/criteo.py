"""Criteo's advertising logs, of the Kaggle contest and of the terabyte: lines of 40 fields with tabs between them.

label  I1 ... I13   decimal counts, may be empty      C1 ... C26   32-bit hashes in hexadecimal, may be empty
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from windrow.comm.errors import DataError
from windrow.recsys.ordered_map import ordered_map
from windrow.recsys.prefetch import prefetch
from windrow.recsys.readers.criteo_kernels import parse_criteo
from windrow.recsys.readers.raw_block import RawBlock
from windrow.recsys.readers.text_blocks import BLOCK_BYTES, TextBlock, text_blocks

__all__ = ["CRITEO_COLUMNS", "CriteoLog"]

NUM_DENSE = 13
NUM_CATEGORICAL = 26
CRITEO_COLUMNS = (
    "label",
    *(f"I{number}" for number in range(1, NUM_DENSE + 1)),
    *(f"C{number}" for number in range(1, NUM_CATEGORICAL + 1)),
)
"""The columns of such a log, in their order."""


class CriteoLog:
    """Reads Criteo's layout; all columns are int64, null where a field is empty.

    Args:
        files: plain, or ``.gz``.
        columns: names of `CRITEO_COLUMNS` to hand on; others are left out.
        block_bytes: text parsed at a time.
    """

    def __init__(
        self, files: Sequence[Path], columns: Sequence[str], *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._files = tuple(files)
        self._columns = tuple(name for name in CRITEO_COLUMNS if name in columns)
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

        values = np.empty((len(CRITEO_COLUMNS), block.num_lines), np.int64)
        valid = np.zeros((len(CRITEO_COLUMNS), (block.num_lines + 7) // 8), np.uint8)
        line, field = parse_criteo(np.frombuffer(block.data, np.uint8), NUM_DENSE, values, valid)
        if line >= 0:
            raise DataError(_message(block, line, field))
        arrays = [
            pa.Array.from_buffers(
                pa.int64(), block.num_lines, [pa.py_buffer(valid[position]), pa.py_buffer(values[position])]
            )
            for position, name in enumerate(CRITEO_COLUMNS)
            if name in self._columns
        ]
        return RawBlock(
            batch=pa.RecordBatch.from_arrays(arrays, names=list(self._columns)),
            file=block.file,
            columns_in_file=CRITEO_COLUMNS,
            unit="line",
            first=block.first_line,
            file_share=block.file_share,
        )


def _message(block: TextBlock, line: int, field: int) -> str:
    fields = block.data.split(b"\n", line + 1)[line].rstrip(b"\r").split(b"\t")
    where = f"{block.file}, line {block.first_line + line}"
    if len(fields) != len(CRITEO_COLUMNS):
        return (
            f"{where}: {len(fields)} fields, expected {len(CRITEO_COLUMNS)} with tabs between them (label, "
            f"{NUM_DENSE} counts, {NUM_CATEGORICAL} categories): correct the line, or the format"
        )
    kind = "a whole number" if field <= NUM_DENSE else "up to 16 hexadecimal digits"
    found = fields[field].decode("utf-8", "replace")
    return f"{where}: field {field + 1} ({CRITEO_COLUMNS[field]}) is {found!r}, expected {kind} or nothing"
