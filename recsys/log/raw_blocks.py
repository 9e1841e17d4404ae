"""What readers of logs share: blocks of rows, the files of a recipe, text cut into blocks, parsing threads."""

import gzip
import os
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, cast

from windrow.comm.errors import DataError

__all__ = [
    "RawBlock",
    "TextBlock",
    "TextType",
    "file_labels",
    "matching_files",
    "ordered_map",
    "repeated_files",
    "resolve_files",
    "text_blocks",
]

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


def resolve_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Turn paths and patterns into files.

    Args:
        paths: files, or patterns with ``*``, ``?`` and ``**``. A folder is no file: write ``folder/*.parquet``.

    Returns:
        The files, patterns replaced by what they match, by name.

    Raises:
        DataError: a file is not there, cannot be looked up or is empty, a pattern matches nothing, a path is a folder,
            or a file is named twice.
    """
    try:
        found = _found(paths)
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be looked up ({error.strerror}): correct the path or its permissions"
        ) from error
    if twice := repeated_files(found):
        raise DataError(
            f"{twice}: a file is named twice, so that its samples would count twice; name it once"
        )
    return tuple(found)


def repeated_files(files: Sequence[Path]) -> str:
    """Find files that are named more than once, by whatever names: a link is the file that it leads to.

    Args:
        files: that exist.

    Returns:
        All their names with commas between them, as they are spelled; empty where there are none.
    """
    places = {file: file.resolve() for file in files}
    counts = Counter(places[file] for file in files)
    return ", ".join(sorted(str(file) for file, place in places.items() if counts[place] > 1))


def _found(paths: Sequence[Path]) -> list[Path]:
    """The files, none of them empty."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder: name its files, for example {path / '*.parquet'}")
        if path.is_file():
            found.append(path)
            continue
        matches = matching_files(path)
        if not matches:
            kind = "no file matches" if any(sign in str(path) for sign in "*?[") else "no such file"
            raise DataError(f"{path}: {kind}; correct the path, which starts from the recipe's folder")
        found += matches
    for path in found:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: write it again, or leave it out of paths")
    return found


def matching_files(pattern: Path) -> list[Path]:
    """The files that a pattern with ``*``, ``?`` and ``**`` names, by path; folders are left out."""
    anchor = Path(pattern.anchor)
    return sorted(path for path in anchor.glob(str(pattern.relative_to(anchor))) if path.is_file())


def file_labels(files: Sequence[Path]) -> dict[Path, str]:
    """What the virtual column ``file`` holds: the name of each file without its endings.

    Args:
        files: of one log.

    Returns:
        Label of each file; ``folder/name`` for all of them where two files have the same name.
    """
    stems = {path: path.name.split(".")[0] for path in files}
    if len(set(stems.values())) == len(stems):
        return stems
    return {path: f"{path.parent.name}/{stem}" for path, stem in stems.items()}


BLOCK_BYTES = 8 << 20
"""Large enough that a block's fixed costs vanish, small enough to hold several."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
        file: where they come from.
        header: the file's header line without its line end; empty where it has none.
        data: the lines, each with its line end.
        first_line: number of the first one in its file, from 1.
        num_lines: how many there are.
        file_share: how much of the file, as it is on disk, is read so far, 0 to 1.
    """

    file: Path
    header: bytes
    data: bytes
    first_line: int
    num_lines: int
    file_share: float

    def parsed(self, batch: Any, columns_in_file: tuple[str, ...], *, skipped: int = 0) -> RawBlock:
        """The block as rows.

        Args:
            batch: ``pyarrow.RecordBatch`` with a row for each line, or for some of them.
            columns_in_file: names of all columns.
            skipped: lines before the first row.
        """
        return RawBlock(
            batch=batch,
            file=self.file,
            columns_in_file=columns_in_file,
            unit="line",
            first=self.first_line + skipped,
            file_share=self.file_share,
        )


def text_blocks(files: Sequence[Path], *, has_header: bool = False) -> Iterator[TextBlock]:
    """Cut files into blocks of whole lines, of about `BLOCK_BYTES` after decompression.

    Args:
        files: plain, or compressed where the name ends in ``.gz``.
        has_header: whether the first line of each file is a header.

    Raises:
        DataError: a file is empty or cannot be read, or its compressed stream is damaged or cut short.
    """
    for file in files:
        line = 1
        header = b""
        try:
            with file.open("rb") as raw, _decompressed(raw, file) as stream:
                if has_header:
                    header = stream.readline().rstrip(b"\r\n")
                    line = 2
                for data in _whole_lines(stream):
                    num_lines = data.count(b"\n")
                    yield TextBlock(file, header, data, line, num_lines, raw.tell() / file.stat().st_size)
                    line += num_lines
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


def _whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream in pieces that end at line ends; a missing last line end is added."""
    started: list[bytes] = []
    while chunk := stream.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            started.append(chunk)
            continue
        yield b"".join((*started, memoryview(chunk)[:cut]))
        started = [chunk[cut:]] if cut < len(chunk) else []
    if started:
        yield b"".join((*started, b"\n"))


Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 4
"""More threads than these parse faster than a disk or a decompressor delivers."""


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Apply a function to items in threads of its own, one for each core up to `MOST_WORKERS`.

    What the function or the iterator raises is raised here, after the results before it. The threads end with the
    items, or when the consumer closes this generator or drops it.

    Args:
        function: gains where it computes in code that lets other threads run (compiled loops, Arrow).
        items: taken in the consumer's thread. One more item than there are threads is held at a time.

    Yields:
        ``function(item)`` of each item, in their order.
    """
    workers = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ordered map")
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
