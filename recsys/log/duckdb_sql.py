"""DuckDB as the parts of this package use it: out of core in a folder, silent, with names and paths quoted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windrow.comm.errors import StoreError

__all__ = ["failures_explained", "open_database", "sql_name", "sql_text"]


def open_database(memory_limit: str, folder: Path, *, threads: int | None = None) -> Any:
    """Open a database in memory that works out of core: ``duckdb.DuckDBPyConnection``, a context manager.

    It holds up to `memory_limit`, "2GB" or bytes as "1000B"; the rest goes to the folder. Threads: None for all cores.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "temp_directory": str(folder),
    }
    if threads is not None:
        config["threads"] = threads
    database = duckdb.connect(config=config)
    # It would draw a bar of its own on a terminal.
    database.execute("SET enable_progress_bar = false")
    return database


@contextlib.contextmanager
def failures_explained(output: Path, cure: str) -> Iterator[None]:
    """Turn what disk and DuckDB say where there is no room into what a user can do about it.

    Raises:
        StoreError: `output` could not be written; it ends with `cure`, beside more room on the disk.
    """
    import duckdb

    try:
        yield
    except (OSError, duckdb.IOException, duckdb.OutOfMemoryException) as error:
        # What follows in DuckDB's messages is about settings that users cannot reach.
        reason = str(error).partition("\n")[0]
        raise StoreError(
            f"cannot write {output}: {reason}. Make room on the disk of {output.parent}, where what does not fit into "
            f"memory goes too, {cure}"
        ) from error


def sql_name(column: str) -> str:
    """A column as a query names it, whatever signs it holds."""
    return '"' + column.replace('"', '""') + '"'


def sql_text(value: object) -> str:
    """A text, or a path, as a query holds it."""
    return "'" + str(value).replace("'", "''") + "'"
