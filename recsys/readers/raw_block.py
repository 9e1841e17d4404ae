"""What every reader of logs yields, and what it is to callers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

__all__ = ["LogReader", "RawBlock", "TextType"]

TextType = Literal["int64", "float64", "string"]
"""What the fields of a column of a text file are read as."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawBlock:
    """Some successive rows of one file, as they are there."""

    batch: Any
    """``pyarrow.RecordBatch`` with those of the columns asked for that the file has."""
    file: Path
    """Where they come from."""
    columns_in_file: tuple[str, ...]
    """Names of all columns of the file."""
    unit: str
    """What rows are counted in, for messages: "line", or "row group 3, row"."""
    first: int
    """Number of the first row in that unit."""
    file_share: float
    """How much of the file is read once this block is, 0 to 1."""

    def where(self, row: int) -> str:
        """The place of a row, for messages.

        Args:
            row: position in the batch, from 0.
        """
        return f"{self.file}, {self.unit} {self.first + row}"


class LogReader(Protocol):
    """A log on disk: some files of one format."""

    @property
    def num_bytes(self) -> int:
        """Size of the files: what progress is measured against."""

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[RawBlock]:
        """Read this rank's share, in bounded memory and in the order of the files.

        Args:
            rank: which share; the shares of all ranks together are the log, without overlap.
            size: number of shares.

        Yields:
            Blocks of rows; a block may have none.

        Raises:
            DataError: a file cannot be read as what it should be; the message names file and place.
        """
