"""Text files cut into blocks at line ends, dealt to ranks in turn.

    decompressed   |line line line|line line |line line line line|line
    block           0              1          2                   3         rank = block mod size

Every rank runs through all the text, which is quick, and parses its own blocks, which is not.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from windrow.comm.errors import DataError

__all__ = ["BLOCK_BYTES", "TextBlock", "text_blocks"]

BLOCK_BYTES = 8 << 20
"""Large enough that a block's fixed costs vanish, small enough to deal evenly and to hold several."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
        file: where they come from.
        data: the lines, each with its line end.
        first_line: number of the first one in its file, from 1.
        num_lines: how many there are.
        file_share: how much of the file, as it is on disk, is read so far, 0 to 1.
    """

    file: Path
    data: bytes
    first_line: int
    num_lines: int
    file_share: float


def text_blocks(
    files: Sequence[Path],
    *,
    rank: int = 0,
    size: int = 1,
    block_bytes: int = BLOCK_BYTES,
    has_header: bool = False,
) -> Iterator[tuple[bytes, TextBlock]]:
    """Cut files into blocks of whole lines.

    Args:
        files: plain, or compressed where the name ends in ``.gz``.
        rank: whose blocks to yield: those whose number, counted over all files, is `rank` modulo `size`.
        size: number of ranks.
        block_bytes: about how long a block is, after decompression. A line is never cut.
        has_header: whether the first line of each file is a header; it is in no block.

    Yields:
        The file's header line without its line end (empty without header), and a block.

    Raises:
        DataError: a file is empty or cannot be read, or its compressed stream is damaged or cut short.
    """
    number = 0
    for file in files:
        line = 1
        header = b""
        try:
            with file.open("rb") as raw, _decompressed(raw, file) as stream:
                if has_header:
                    header = stream.readline().rstrip(b"\r\n")
                    line = 2
                for data in _whole_lines(stream, block_bytes):
                    num_lines = data.count(b"\n")
                    if number % size == rank:
                        yield header, TextBlock(file, data, line, num_lines, raw.tell() / file.stat().st_size)
                    line += num_lines
                    number += 1
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{file}: the compressed stream is damaged or cut short at or after line {line} ({error}): "
                "fetch the file again"
            ) from error
        except OSError as error:
            raise DataError(
                f"{file}, line {line}: cannot be read ({error.strerror}): correct the path or its permissions, or "
                "fetch the file again"
            ) from error
        if line == 1 + has_header:
            raise DataError(f"{file} has no lines of data: write it again, or leave it out of paths")


def _decompressed(raw: BinaryIO, file: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(raw, "rb")) if file.suffix == ".gz" else raw


def _whole_lines(stream: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """The rest of a stream in pieces that end at line ends; a missing last line end is added."""
    started: list[bytes] = []
    while chunk := stream.read(block_bytes):
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            started.append(chunk)
            continue
        yield b"".join((*started, memoryview(chunk)[:cut]))
        started = [chunk[cut:]] if cut < len(chunk) else []
    if started:
        yield b"".join((*started, b"\n"))
