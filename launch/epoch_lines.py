"""A file of JSON lines, one for each epoch, that survives a kill and forgets the epochs that are run again."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from windrow.comm.errors import StoreError
from windrow.partition.atomic_file import write_atomically

__all__ = ["EpochEntry", "EpochLines", "read_lines"]


class EpochEntry(Protocol):
    """What a line holds."""

    @property
    def epoch(self) -> int:
        """Epochs finished, this one included."""

    def to_json(self) -> str:
        """The line, without its end."""


Entry = TypeVar("Entry", bound=EpochEntry)
Line = TypeVar("Line")


class EpochLines(Generic[Entry]):
    """Appends one line per epoch. Rank 0 alone makes one.

    Args:
        path: the file; one of an earlier run is gone on with.
        parse: the inverse of the entries' ``to_json``, with a ValueError for what is not an entry.
        finished_epochs: of the checkpoint that is resumed from: lines of later epochs are removed, since those
            epochs are run again. 0 for a new run.

    Raises:
        StoreError: the file of an earlier run cannot be understood.
    """

    def __init__(self, path: Path, parse: Callable[[str], Entry], *, finished_epochs: int = 0) -> None:
        self.kept = tuple(entry for entry in read_lines(path, parse) if entry.epoch <= finished_epochs)
        """Entries from before the run was resumed."""
        write_atomically(path, b"".join(f"{entry.to_json()}\n".encode() for entry in self.kept))
        self._file = path.open("a", encoding="utf-8")

    def append(self, entry: Entry) -> None:
        """Write one line; it is on its way to the disk when this returns.

        Raises:
            StoreError: the disk is full, say.
        """
        try:
            self._file.write(entry.to_json() + "\n")
            self._file.flush()
        except OSError as error:
            # Closing writes what is left, which fails once more; a second close does nothing.
            with contextlib.suppress(OSError):
                self._file.close()
            raise StoreError(
                f"cannot write {self._file.name}: {error.strerror}. Make room, then go on with --resume."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_lines(path: Path, parse: Callable[[str], Line]) -> list[Line]:
    """Read a file of lines.

    Args:
        path: the file; need not exist.
        parse: makes something of a line, with a ValueError for what is not one.

    Returns:
        What the lines hold, in order. A last line that a killed process left unfinished is passed over.

    Raises:
        StoreError: another line cannot be understood.
    """
    if not path.exists():
        return []
    finished = path.read_text(encoding="utf-8").split("\n")[:-1]
    found = []
    for number, line in enumerate(finished, start=1):
        try:
            found.append(parse(line))
        except ValueError as error:
            raise StoreError(f"{path}, line {number}: {error}. Remove that line.") from error
    return found
