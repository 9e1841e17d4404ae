"""Writing a file so that a reader, or a crash, sees the old contents or the new ones and nothing between."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

__all__ = ["PARTIAL_PATTERN", "flush", "open_atomically", "write_atomically"]

Bytes: TypeAlias = bytes | memoryview

PARTIAL_PATTERN = ".*.part"
"""Names of files that a killed process may leave behind; they are never read."""


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Fill a temporary file in the same folder; when the block ends without an error, it takes the name, durably.

    Args:
        path: the file; its folder exists. It is replaced in one step.

    Yields:
        The temporary file, open for writing.

    Raises:
        OSError: the disk is full or the folder not writable. After any error, also one of the block, the old file is
            as it was and the temporary one gone.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_atomically(path: Path, *chunks: Bytes) -> None:
    """Replace a file in one step, durably.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and take the name at last.

    Args:
        path: the file; its folder exists.
        chunks: the contents, one after another.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is as it was, the temporary one gone.
    """
    with open_atomically(path) as file:
        for chunk in chunks:
            file.write(chunk)


def flush(path: Path) -> None:
    """Make a file's contents, or the names in a folder, durable.

    Raises:
        OSError: the disk is full or fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
