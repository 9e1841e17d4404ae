"""DuckDB as the parts of this package use it: out of core in a folder, silent, with names and paths quoted."""

from pathlib import Path
from typing import Any

__all__ = ["open_database", "sql_name", "sql_text"]


def open_database(memory_limit: str, folder: Path, *, threads: int | None = None) -> Any:
    """Open a database in memory that works out of core.

    Args:
        memory_limit: what it may hold at a time, as DuckDB writes it: "2GB", or bytes as "1000B".
        folder: where the rest goes.
        threads: that it may use; None for as many as there are cores.

    Returns:
        ``duckdb.DuckDBPyConnection``, a context manager.
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


def sql_name(column: str) -> str:
    """A column as a query names it, whatever signs it holds."""
    return '"' + column.replace('"', '""') + '"'


def sql_text(value: object) -> str:
    """A text, or a path, as a query holds it."""
    return "'" + str(value).replace("'", "''") + "'"
