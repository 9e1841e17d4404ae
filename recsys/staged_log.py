"""What is asked of the staged log as a whole, answered by DuckDB: out of core, in bounded memory."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from windrow.recsys.clustering.log_files import LogFiles
from windrow.recsys.clustering.ranks import open_ranks, write_ranks
from windrow.recsys.clustering.runs import read_buckets, write_runs
from windrow.recsys.clustering.session_order import session_hash
from windrow.recsys.duckdb_sql import open_database, sql_name, sql_text
from windrow.recsys.vocabulary import FIRST_VALUE_ROW

__all__ = ["StagedLog"]

MEMORY_LIMIT = "2GB"
"""What DuckDB may hold at a time; the rest goes to the working folder."""

SHARD_ROWS = 1 << 18
"""Samples to a shard: four row groups. The fewer, the nearer are the samples of a session within it; the more, the
larger are files."""
RUN_BYTES, BUCKET_BYTES = 256 << 20, 128 << 20
"""Of rows that are sorted, and of those that are merged, at a time: with their copies less than DuckDB may hold."""


class StagedLog:
    """Queries over the file that `StagingWriter` wrote. A context manager.

    Args:
        file: the staged file.
        work: folder for what does not fit into memory.
    """

    def __init__(self, file: Path, work: Path) -> None:
        self._file = file
        self._work = work
        self._database = open_database(MEMORY_LIMIT, work / "duckdb")

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
        self._reorder(f"SELECT row FROM ({self._numbered('time, row AS log_row')}) ORDER BY time, log_row")

    def sort_by_session(
        self, split: str, *, shard: bool, cluster: bool, times: bool
    ) -> dict[int, tuple[int, ...]]:
        """Put the rows in order of (shard of the session, hash of the session, session, time, row).

        A shard has about `SHARD_ROWS` samples of a split. See `windrow.recsys.clustering.session_order`.

        Args:
            split: the code of a row's split, in SQL.
            shard: whether shards come first.
            cluster: whether sessions follow; rows of a shard stay in the order of the log otherwise.
            times: whether there are times that order rows, before their place in the log.

        Returns:
            For each split the rows of its shards, in their order; empty without `shard`.
        """
        rows = self._numbered(
            f"session, row AS log_row, CAST({split} AS INTEGER) AS split, {'time' if times else '0'} AS time"
        )
        keyed = f"SELECT *, {session_hash('session', 'row')} AS hash FROM ({rows})"
        counts = dict(
            self._database.execute(f"SELECT split, count(*) FROM ({rows}) GROUP BY split").fetchall()
        )
        shards = " ".join(f"WHEN {code} THEN {-(-count // SHARD_ROWS)}" for code, count in counts.items())
        dealt = f"SELECT *, hash % (CASE split {shards} END) AS shard FROM ({keyed})"
        order = ["shard"] * shard + ["hash", "session"] * cluster + ["time", "log_row"]
        found: dict[int, tuple[int, ...]] = {}
        if shard:
            for code, _, count in self._database.execute(
                f"SELECT split, shard, count(*) FROM ({dealt}) GROUP BY split, shard ORDER BY split, shard"
            ).fetchall():
                found[code] = (*found.get(code, ()), count)
        self._reorder(f"SELECT row FROM ({dealt}) ORDER BY {', '.join(order)}")
        return found

    def time_of_row(self, row: int, *, in_order: bool = True) -> int:
        """The time of one row of the log in order of time.

        Args:
            row: position in that order.
            in_order: whether the rows are in it.
        """
        order = "" if in_order else "ORDER BY time"
        found = self._database.execute(
            f"SELECT time FROM {_scan(self._file)} {order} LIMIT 1 OFFSET {row}"
        ).fetchall()
        return int(found[0][0])

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
            f"avg({sql_name(name)}::DOUBLE), stddev_pop({sql_name(name)}::DOUBLE)" for name in columns
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
            f"SELECT {f'unnest({sql_name(column)})' if is_list else sql_name(column)} AS value "
            f"FROM {scan} WHERE {chosen}"
            for column, is_list in columns
        )
        limit = "" if max_rows is None else f"LIMIT {max_rows - FIRST_VALUE_ROW}"
        self._database.execute(
            f"COPY (SELECT row_number() OVER () - 1 + {FIRST_VALUE_ROW} AS id, value, count FROM ("
            f"SELECT value, count(*) AS count FROM ({parts}) WHERE value IS NOT NULL GROUP BY value "
            f"HAVING count >= {min_count} ORDER BY count DESC, value {limit})) TO {sql_text(path)} "
            "(FORMAT parquet, COMPRESSION zstd)"
        )

    def _numbered(self, columns: str) -> str:
        """A query for columns, and the position of each row as ``row``."""
        return f"SELECT {columns}, row_number() OVER () - 1 AS row FROM {_scan(self._file)}"

    def _reorder(self, order: str) -> None:
        """Write the rows anew, in the order in which a query names them.

        DuckDB sorts what decides alone: with lists among the columns it holds much more memory than its limit says.
        """
        from pyarrow import parquet

        ordered, target = self._work / "order.parquet", self._work / "ordered.parquet"
        self._database.execute(f"COPY ({order}) TO {sql_text(ordered)} (FORMAT parquet, COMPRESSION lz4_raw)")
        ranks = write_ranks(self._database, ordered, self._work)
        ordered.unlink()
        log = LogFiles.open([self._file])
        bucket_rows = max(1, int(BUCKET_BYTES / log.row_bytes))
        runs = self._work / "runs"
        runs.mkdir()
        written = write_runs(
            log.batches(),
            open_ranks(ranks),
            bucket_rows=bucket_rows,
            run_bytes=RUN_BYTES,
            folder=runs,
        )
        files = [path for path, _ in written]
        with parquet.ParquetWriter(
            target, log.schema, compression="lz4", use_dictionary=False, write_statistics=False
        ) as writer:
            for batch in read_buckets(files, -(-len(open_ranks(ranks)) // bucket_rows)):
                writer.write_batch(batch)
        shutil.rmtree(runs)
        ranks.unlink()
        self._file.unlink()
        self._file = target.rename(self._work / "staged.parquet")


def _scan(file: Path) -> str:
    return f"read_parquet({sql_text(file)})"
