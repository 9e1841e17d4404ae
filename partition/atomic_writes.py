"""Files and folders that appear whole or not at all: a reader, or a crash, sees the old contents or the new ones."""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from windrow.comm.errors import StoreError

__all__ = ["PARTIAL_PATTERN", "atomic_folder", "flush", "open_atomically", "write_atomically"]

PARTIAL_PATTERN = ".*.part"
"""Names of files that a killed process may leave behind; they are never read."""


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Replace a file, whose folder exists, durably and in one step, by what the block writes into the one it is given.

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


def write_atomically(path: Path, *chunks: bytes | memoryview) -> None:
    """Replace a file in one step, durably, by these chunks one after another; see `open_atomically`."""
    with open_atomically(path) as file:
        for chunk in chunks:
            file.write(chunk)


def flush(path: Path) -> None:
    """Make a file's contents, or the names in a folder, durable; OSError where the disk is full or fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SUFFIX_BYTES = 6


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Fill an empty folder beside `path`; when the block ends without an error, it becomes `path`, durably.

        NAME.tmp-<random>   being filled; left behind only by a writer that was killed
        NAME.old-<random>   the store being replaced, between the two renames

    Leftovers of killed writers are cleared first; a store caught between the two renames is put back. Two writers must
    not fill one path at the same time. A `path` that is a link stays one: the folder it leads to is replaced.

    Raises:
        StoreError: `path` exists and `overwrite` is false, there can be no folder to hold it, or leftovers cannot be
            cleared.
    """
    suffix = secrets.token_hex(SUFFIX_BYTES)
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(path)
        if path.exists() and not overwrite:
            raise StoreError(f"{path} already exists: choose another folder or overwrite it")
        filling = path.with_name(f"{path.name}.tmp-{suffix}")
        filling.mkdir()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"cannot make the folder {path}: {error}. Choose another") from error
    try:
        yield filling
        for entry in (*sorted(filling.rglob("*")), filling):
            flush(entry)
        replaced = path.with_name(f"{path.name}.old-{suffix}")
        if path.exists():
            path.rename(replaced)
        try:
            filling.rename(path)
        except OSError:
            if replaced.exists():
                replaced.rename(path)
            raise
        flush(path.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except BaseException:
        shutil.rmtree(filling, ignore_errors=True)
        raise


def _clear_leftovers(path: Path) -> None:
    # The whole random suffix has to match: a user's own "NAME.old-2025" beside the store stays.
    leftover = re.compile(rf"{re.escape(path.name)}\.(old|tmp)-[0-9a-f]{{{2 * SUFFIX_BYTES}}}")
    for entry in list(path.parent.iterdir()):
        match = leftover.fullmatch(entry.name)
        if match is None:
            continue
        try:
            if match[1] == "old" and not path.exists():
                entry.rename(path)
            else:
                shutil.rmtree(entry)
        except OSError as error:
            raise StoreError(
                f"cannot clear {entry}, which a killed writer left: {error}. Remove it yourself"
            ) from error
