"""What is asked of the staged log as a whole, answered by DuckDB: out of core, in bounded memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from windrow.recsys.vocabulary import FIRST_VALUE_ROW

__all__ = ["StagedLog"]

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold at a time; the rest goes to the working folder."""


class StagedLog:
    """Queries over the file that `StagingWriter` wrote. A context manager.

    Args:
        file: the staged file.
        work: folder for what does not fit into memory.
    """

    def __init__(self, file: Path, work: Path) -> None:
        import duckdb

        self._file = file
        self._work = work
        self._database: Any = duckdb.connect(
            config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(work / "duckdb")}
        )
        # It would draw a bar of its own on a terminal.
        self._database.execute("SET enable_progress_bar = false")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @property
    def file(self) -> Path:
        """The staged file."""
        return self._file

    def sort_by_time(self) -> None:
        """Put the rows in order of time, those of one instant as they were."""
        ordered = self._work / "ordered.parquet"
        self._database.execute(
            f"COPY (SELECT * FROM {_scan(self._file)} ORDER BY time, row) TO {_quoted(ordered)} "
            "(FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE 122880)"
        )
        self._file.unlink()
        self._file = ordered

    def time_of_row(self, row: int) -> int:
        """The time of one row.

        Args:
            row: position in the file.
        """
        found = self._database.execute(
            f"SELECT time FROM {_scan(self._file)} LIMIT 1 OFFSET {row}"
        ).fetchone()
        return int(found[0])

    def moments(self, columns: Sequence[str], chosen: str) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of columns, over values that are not missing.

        Args:
            columns: of float32.
            chosen: condition on the rows, in SQL.

        Returns:
            ``(mean, deviation)`` by column; (0, 1) without values, and deviation 1 where all are equal.
        """
        if not columns:
            return {}
        # Single-threaded sums: the last digits must not depend on how threads shared the rows.
        terms = ", ".join(
            f"avg({_name(name)}::DOUBLE), stddev_pop({_name(name)}::DOUBLE)" for name in columns
        )
        self._database.execute("SET threads = 1")
        row = self._database.execute(f"SELECT {terms} FROM {_scan(self._file)} WHERE {chosen}").fetchone()
        self._database.execute("RESET threads")
        return {
            name: (float(row[2 * place] or 0.0), float(row[2 * place + 1] or 1.0))
            for place, name in enumerate(columns)
        }

    def write_vocabulary(
        self,
        path: Path,
        columns: Sequence[tuple[str, bool]],
        chosen: str,
        *,
        min_count: int,
        max_rows: int | None,
    ) -> None:
        """Count the values of a table and write them in the order of their rows.

        Args:
            path: Parquet file to write, with columns ``id``, ``value`` and ``count``.
            columns: staged columns of the table's features, and whether each holds lists.
            chosen: condition on the rows that count, in SQL.
            min_count: rarer values are left out.
            max_rows: rows that the table may have; None for any number.
        """
        scan = _scan(self._file)
        parts = " UNION ALL ".join(
            f"SELECT {f'unnest({_name(column)})' if is_list else _name(column)} AS value FROM {scan} WHERE {chosen}"
            for column, is_list in columns
        )
        limit = "" if max_rows is None else f"LIMIT {max_rows - FIRST_VALUE_ROW}"
        self._database.execute(
            f"COPY (SELECT row_number() OVER () - 1 + {FIRST_VALUE_ROW} AS id, value, count FROM ("
            f"SELECT value, count(*) AS count FROM ({parts}) WHERE value IS NOT NULL GROUP BY value "
            f"HAVING count >= {min_count} ORDER BY count DESC, value {limit})) TO {_quoted(path)} "
            "(FORMAT parquet, COMPRESSION zstd)"
        )


def _scan(file: Path) -> str:
    return f"read_parquet({_quoted(file)})"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
