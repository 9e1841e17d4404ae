"""Writing a file so that a reader, or a crash, sees the old contents or the new ones and nothing between."""

import contextlib
import os
from pathlib import Path
from typing import TypeAlias

__all__ = ["PARTIAL_PATTERN", "write_atomically"]

Bytes: TypeAlias = bytes | memoryview

PARTIAL_PATTERN = ".*.part"
"""Names of files that a killed process may leave behind; they are never read."""


def write_atomically(path: Path, *chunks: Bytes) -> None:
    """Replace a file in one step, durably.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and take the name at last.

    Args:
        path: the file; its folder exists.
        chunks: the contents, one after another.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is as it was, the temporary one gone.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Make the new name itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
