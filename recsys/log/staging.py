"""The staged log: columns that are needed, conforming, in one Parquet file, and what is asked of it as a whole.

    split                      code of the split, where that is known already
    label.NAME, weight         float32
    time, session              int64
    dense.NAME                 float32, null where missing
    id.NAME, weights.NAME      int64 or string, or lists of these; lists of float32

What follows (counting, sorting, mapping) then reads columns, in any order and more than once, at the disk's speed,
whatever the log's own format. DuckDB counts and sorts out of core, in bounded memory.
"""

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.external_sort import rank_sessions, sort_rows, write_ranks
from windrow.recsys.log.clustering.log_files import LogFiles, is_text
from windrow.recsys.log.conform import Column, ColumnKind, ColumnUse, conform, list_lengths
from windrow.recsys.log.duckdb_sql import open_database, sql_name, sql_text
from windrow.recsys.log.options import LogOptions, LogSplitOptions, split_by_hash
from windrow.recsys.log.readers import RawBlock, TextType
from windrow.recsys.log.vocabulary import FIRST_VALUE_ROW

__all__ = ["StagedLog", "conformed", "stage", "staged_columns", "text_types"]

FILE_COLUMN = "file"
"""Virtual column with the name of the file, where the log has no column of that name."""

SPLIT_KEY = "split key"
TEXT_TYPES: Mapping[ColumnKind, TextType] = {
    **dict.fromkeys(("label", "real", "weight", "number"), "float64"),
    "row": "int64",
}


def staged_columns(
    log: LogOptions, split: LogSplitOptions, are_text: Mapping[str, bool | None] | None = None
) -> tuple[ColumnUse, ...]:
    """List what is needed of a log and its split.

    `are_text` says by feature whether ids are to be text, as they were in a log that was prepared before.
    """
    label_kind: ColumnKind = "label" if log.label_kind == "binary" else "real"
    found = [ColumnUse(f"label.{name}", name, label_kind) for name in log.labels]
    optional: tuple[tuple[str, str, ColumnKind], ...] = (
        ("weight", log.sample_weight, "weight"),
        ("time", log.time, "time"),
        ("session", log.session, "key"),
        (SPLIT_KEY, split.column, "key"),
    )
    found += [ColumnUse(name, column, kind) for name, column, kind in optional if column]
    found += [ColumnUse(f"dense.{name}", name, "number") for name in log.dense]
    for name, feature in log.features.items():
        whole = feature.ids == "rows"
        kinds: tuple[ColumnKind, ColumnKind] = ("row", "rows") if whole else ("id", "ids")
        found.append(
            ColumnUse(
                f"id.{name}",
                log.column_of(name),
                kinds[feature.multi_hot],
                feature.separator,
                feature.rows if whole else None,
                (are_text or {}).get(name),
            )
        )
        if feature.weights:
            found.append(ColumnUse(f"weights.{name}", feature.weights, "weights", feature.separator))
    return tuple(found)


def text_types(columns: tuple[ColumnUse, ...]) -> dict[str, TextType]:
    """What the fields of each column of a text file are read as; a column with two uses that differ is read as text."""
    types: dict[str, TextType] = {}
    for use in columns:
        wanted = TEXT_TYPES.get(use.kind, "string")
        types[use.column] = wanted if types.get(use.column, wanted) == wanted else "string"
    return types


def conformed(block: RawBlock, use: ColumnUse, label: str, log: LogOptions) -> tuple[Column, Any]:
    """A column of a block, and what it is needed as; `label` is the virtual column ``file`` in all rows.

    Raises:
        DataError: the column is absent and not optional, or a value does not fit.
    """
    import pyarrow as pa
    from pyarrow import compute

    position = block.batch.schema.get_field_index(use.column)
    if position >= 0:
        array = block.batch.column(position)
    elif use.column == FILE_COLUMN:
        array = pa.array([label] * block.batch.num_rows)
    elif use.column in log.optional:
        array = pa.nulls(block.batch.num_rows)
    else:
        raise DataError(
            f"{block.where(0)}: there is no column {use.column!r}; the columns are {', '.join(block.columns_in_file)}. "
            "Correct the name, or list it under optional if only some files have it"
        )
    if use.kind == "label" and log.format == "libfm":
        array = compute.if_else(compute.equal(array, -1), 0, array)
    column = Column(array, use, block)
    return column, conform(column)


def stage(
    path: Path,
    columns: Sequence[ColumnUse],
    log: LogOptions,
    split: LogSplitOptions,
    blocks: Iterable[tuple[RawBlock, str, int]],
) -> tuple[int, bool]:
    """Write the staged file, and deal rows to splits where that does not need the whole log.

    Each of the `blocks` comes with the virtual column ``file`` in all its rows, and the code of their split where files
    decide.

    Returns:
        How many rows there are, and whether no row was earlier than the one before it.

    Raises:
        DataError: a column is absent, or a value does not fit.
    """
    import pyarrow as pa
    from pyarrow import parquet

    writer: Any = None
    kinds: dict[str, str] = {}
    first, latest, in_time_order = 0, -(1 << 63), True
    with contextlib.ExitStack() as stack:
        for block, label, code in blocks:
            if block.batch.num_rows == 0:
                continue
            staged = {}
            for use in columns:
                column, staged[use.name] = conformed(block, use, label, log)
                _check_kind(column, kinds)
            _check_weights(block, columns, staged)
            rows = np.arange(first, first + block.batch.num_rows)
            first += len(rows)
            if "time" in staged:
                times = np.concatenate([[latest], staged["time"].to_numpy()])
                in_time_order &= bool((times[1:] >= times[:-1]).all())
                latest = int(times[-1])
            if split.by == "files":
                staged["split"] = pa.array(np.full(len(rows), code, np.int8))
            elif split.by == "hash":
                keys = staged.pop(SPLIT_KEY).to_numpy() if split.column else rows
                staged["split"] = pa.array(split_by_hash(keys, split.fractions, split.seed))
            batch = pa.RecordBatch.from_pydict(staged)
            if writer is None:
                writer = stack.enter_context(
                    parquet.ParquetWriter(
                        path, batch.schema, compression="lz4", use_dictionary=False, write_statistics=False
                    )
                )
            writer.write_batch(_alike(batch, writer.schema, block))
    return first, in_time_order


def _alike(batch: Any, schema: Any, block: RawBlock) -> Any:
    """A batch whose columns have the types of the first one."""
    import pyarrow as pa

    arrays = []
    for field, array in zip(schema, batch.columns, strict=True):
        if array.type != field.type and array.null_count == len(array):
            array = pa.nulls(len(array), field.type)  # noqa: PLW2901 - absent here, of either type
        if array.type != field.type:
            raise DataError(
                f"{block.where(0)}: column of {field.name!r} holds {array.type}, but {field.type} in the rows before: "
                "give it one type in all files, and name first a file that has it"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_kind(column: Column, kinds: dict[str, str]) -> None:
    """Refuse what means different things in different places; `kinds` of columns that were seen are kept.

    Times that are dates here and whole numbers there are of who knows what unit; of keys that are text the hash is
    taken, so that one that is 5 here and "5" there would be two.
    """
    from pyarrow import types

    use, kind = column.use, column.array.type
    if use.kind == "key":
        found = "text" if is_text(kind.value_type if types.is_dictionary(kind) else kind) else "whole numbers"
    elif use.kind == "time":
        # Text: the fields of a block are all of one kind.
        is_number = types.is_integer(kind) or str(column.array[0].as_py()).strip().lstrip("+-").isdecimal()
        found = "whole numbers" if is_number else "dates"
    else:
        return
    before = kinds.setdefault(use.name, found)
    if found != before:
        raise column.refuse(0, f"holds {found}, but {before} in the rows before: give all files one of both")


def _check_weights(block: RawBlock, columns: Sequence[ColumnUse], staged: Mapping[str, Any]) -> None:
    """Each list of weights has to be as long as its list of ids."""
    for use in columns:
        if use.kind != "weights":
            continue
        ids = list_lengths(staged[use.name.replace("weights.", "id.", 1)])
        weights = list_lengths(staged[use.name])
        wrong = np.flatnonzero(ids != weights)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{block.where(row)}: column {use.column!r} has {weights[row]} weights for {ids[row]} ids: give "
                "one for each"
            )


MEMORY_BYTES = 2 << 30
"""What DuckDB may hold at a time, and what a sort may; the rest goes to the working folder."""

SHARD_ROWS = 1 << 18
"""Samples to a shard: four row groups. The fewer, the nearer are the samples of a session within it; the more, the
larger are files."""


class StagedLog:
    """Queries over the file that `stage` wrote, with a folder for what does not fit into memory. A context manager.

    Attributes:
        file: the staged file, where it is now; sorting moves it.
    """

    def __init__(self, file: Path, work: Path) -> None:
        self.file = file
        self._work = work
        self._database = open_database(f"{MEMORY_BYTES}B", work / "duckdb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def sort_by_time(self) -> None:
        """Put the rows in order of time, those of one instant as they were."""
        query = f"SELECT file_row_number AS row FROM {_scan(self.file)} ORDER BY time, row"
        self._reorder(write_ranks(self._database, query, self._work))

    def sort_by_session(self, split: str, *, shard: bool, cluster: bool, times: bool) -> dict[int, tuple[int, ...]]:
        """Put the rows in the order of `windrow.recsys.log.clustering.external_sort.rank_sessions`.

        Args:
            split: the code of a row's split, in SQL.
            shard: whether shards come first, of about `SHARD_ROWS` samples of a split.
            cluster: whether sessions follow; rows of a shard stay in the order of the log otherwise.
            times: whether there are times that order rows, before their place in the log.

        Returns:
            For each split the rows of its shards, in their order; empty without `shard`.
        """
        rows = (
            f"SELECT session, file_row_number AS row, CAST({split} AS INTEGER) AS split, "
            f"{'time' if times else '0'} AS time FROM {_scan(self.file)}"
        )
        counts = dict(self._database.execute(f"SELECT split, count(*) FROM ({rows}) GROUP BY split").fetchall())
        shards = " ".join(
            f"WHEN {code} THEN {-(-count // SHARD_ROWS) if shard else 1}" for code, count in counts.items()
        )
        keys = f"SELECT *, CASE split {shards} END AS shards FROM ({rows})"
        ranks, dealt = rank_sessions(self._database, keys, self._work, cluster=cluster)
        self._reorder(ranks)
        return {code: tuple(rows for (split, _), rows in dealt.items() if split == code) for code in counts if shard}

    def time_of_row(self, row: int, *, in_order: bool) -> int:
        """The time of the row at a position in the order of time, which rows are in or are sorted for."""
        place = f"WHERE file_row_number = {row}" if in_order else f"ORDER BY time LIMIT 1 OFFSET {row}"
        query = f"SELECT time FROM {_scan(self.file)} {place}"
        return int(self._database.execute(query).fetchall()[0][0])

    def moments(self, columns: Sequence[str], chosen: str) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of float32 columns, over values that are not missing, of chosen rows (SQL).

        By column; (0, 1) without values, and deviation 1 where all are equal.
        """
        if not columns:
            return {}
        # Single-threaded sums: the last digits must not depend on how threads shared the rows.
        terms = ", ".join(f"avg({sql_name(name)}::DOUBLE), stddev_pop({sql_name(name)}::DOUBLE)" for name in columns)
        self._database.execute("SET threads = 1")
        row = self._database.execute(f"SELECT {terms} FROM {_scan(self.file)} WHERE {chosen}").fetchone()
        self._database.execute("RESET threads")
        return {
            name: (float(row[2 * place] or 0.0), float(row[2 * place + 1] or 1.0)) for place, name in enumerate(columns)
        }

    def write_vocabulary(
        self,
        path: Path,
        columns: Sequence[tuple[str, bool]],
        chosen: str,
        *,
        min_count: int,
        max_rows: int | None,
        base: Path | None = None,
    ) -> None:
        """Count the values of a table and write them in the order of their rows.

        Args:
            path: Parquet file with columns ``id``, ``value`` and ``count``.
            columns: staged columns of the table's features, and whether each holds lists.
            chosen: condition on the rows that count, in SQL.
            min_count: rarer values are left out.
            max_rows: of the table; None for any number.
            base: a vocabulary of earlier samples, whose values come first, in its order and however rare they are now.
        """
        scan = _scan(self.file)
        parts = " UNION ALL ".join(
            f"SELECT {f'unnest({sql_name(column)})' if is_list else sql_name(column)} AS value "
            f"FROM {scan} WHERE {chosen}"
            for column, is_list in columns
        )
        limit = "" if max_rows is None else f"LIMIT {max_rows - FIRST_VALUE_ROW}"
        counted = f"SELECT value, count(*) AS count FROM ({parts}) WHERE value IS NOT NULL GROUP BY value"
        values = f"SELECT value, count FROM ({counted}) WHERE count >= {min_count} ORDER BY count DESC, value"
        if base is not None:
            values = (
                f"SELECT value, coalesce(count, 0) AS count FROM ({counted}) FULL JOIN "
                f"(SELECT id, value FROM {_scan(base)}) USING (value) WHERE id IS NOT NULL OR count >= {min_count} "
                "ORDER BY id NULLS LAST, count DESC, value"
            )
        self._database.execute(
            f"COPY (SELECT row_number() OVER () - 1 + {FIRST_VALUE_ROW} AS id, value, count FROM ({values} {limit})) "
            f"TO {sql_text(path)} (FORMAT parquet, COMPRESSION zstd)"
        )

    def _reorder(self, ranks: npt.NDArray[np.int64]) -> None:
        """Write the rows anew, in the order of their ranks.

        DuckDB sorts what decides alone: with lists among the columns it holds much more memory than its limit says.
        """
        from pyarrow import parquet

        sorting, target = self._work / "sorting", self._work / "ordered.parquet"
        sorting.mkdir()
        log = LogFiles.open([self.file])
        with parquet.ParquetWriter(
            target, log.schema, compression="lz4", use_dictionary=False, write_statistics=False
        ) as writer:
            for batch in sort_rows(
                log.batches(), ranks, row_bytes=log.row_bytes, memory_bytes=MEMORY_BYTES, folder=sorting
            ):
                writer.write_batch(batch)
        shutil.rmtree(sorting)
        self.file.unlink()
        self.file = target.rename(self._work / "staged.parquet")


def _scan(file: Path) -> str:
    return f"read_parquet({sql_text(file)}, file_row_number = true)"
