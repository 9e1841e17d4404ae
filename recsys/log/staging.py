"""The staged log: columns that are needed, conforming, in one Parquet file, and what is asked of it as a whole.

    split                      code of the split, where that is known already
    label.NAME, weight         float32
    time, session              int64
    dense.NAME                 float64, null where missing
    id.NAME, weights.NAME      int64 or string, or lists of these; lists of float32

What follows (counting, sorting, mapping) then reads columns, in any order and more than once, at the disk's speed,
whatever the log's own format. DuckDB counts and sorts out of core, in bounded memory.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.recsys.log.clustering.external_sort import rank_sessions, sort_rows, with_hash, write_ranks
from windrow.recsys.log.clustering.log_files import LogFiles, is_text
from windrow.recsys.log.conform import Column, ColumnKind, ColumnUse, conform, list_lengths
from windrow.recsys.log.duckdb_sql import open_database, sql_name, sql_text
from windrow.recsys.log.options import LogOptions, LogSplitOptions, split_by_hash
from windrow.recsys.log.readers import RawBlock, TextType
from windrow.recsys.log.vocabulary import FIRST_VALUE_ROW

__all__ = ["Staged", "StagedLog", "check_weights", "conformed", "stage", "staged_columns", "text_types", "write_anew"]

STAGED_FORMAT: Mapping[str, Any] = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
"""How staged files are written: they are read a few times, and gone."""

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


class Staged(NamedTuple):
    """What was staged."""

    rows: int
    """How many."""
    in_order: bool
    """Whether no row was earlier than the one before it."""
    times: tuple[int, int]
    """Of the first row and the last; 0 where there are none."""
    kinds: dict[str, str]
    """What columns hold whose values may be written in two ways."""
    known: frozenset[str]
    """Columns of which a row has a value: those of others may be of any type."""


def stage(
    path: Path,
    columns: Sequence[ColumnUse],
    log: LogOptions,
    split: LogSplitOptions,
    blocks: Iterable[tuple[RawBlock, str, int]],
) -> Staged:
    """Write the staged file, and deal rows to splits where that does not need the whole log.

    Each of the `blocks` comes with the virtual column ``file`` in all its rows, and the code of their split where files
    decide.

    Raises:
        DataError: a column is absent, or a value does not fit.
    """
    import pyarrow as pa
    from pyarrow import parquet

    writer: Any = None
    pieces: list[Path] = []
    known: set[str] = set()
    kinds: dict[str, str] = {}
    first, latest, in_time_order = 0, -(1 << 63), True
    span = (0, 0)
    with contextlib.ExitStack() as stack:
        for block, label, code in blocks:
            if block.batch.num_rows == 0:
                continue
            staged = {}
            for use in columns:
                column, staged[use.name] = conformed(block, use, label, log)
                _check_kind(column, kinds)
            check_weights(block, columns, staged)
            rows = np.arange(first, first + block.batch.num_rows)
            first += len(rows)
            if "time" in staged:
                times = np.concatenate([[latest], staged["time"].to_numpy()])
                span = (int(times[1]) if writer is None else span[0], int(times[-1]))
                in_time_order &= bool((times[1:] >= times[:-1]).all())
                latest = int(times[-1])
            if split.by == "files":
                staged["split"] = pa.array(np.full(len(rows), code, np.int8))
            elif split.by == "hash":
                keys = staged.pop(SPLIT_KEY).to_numpy() if split.column else rows
                staged["split"] = pa.array(split_by_hash(keys, split.fractions, split.seed))
            batch = pa.RecordBatch.from_pydict(staged)
            schema = _joined_schema(batch, None if writer is None else writer.schema, known, block)
            if writer is None or writer.schema != schema:
                pieces.append(path if writer is None else path.with_name(f"{path.name}-{len(pieces)}"))
                writer = stack.enter_context(parquet.ParquetWriter(pieces[-1], schema, **STAGED_FORMAT))
            writer.write_batch(_of_schema(batch, schema))
    if len(pieces) > 1:
        write_anew(pieces, path, writer.schema)
    return Staged(first, in_time_order, span, kinds, frozenset(known))


def _joined_schema(batch: Any, schema: Any, known: set[str], block: RawBlock) -> Any:
    """The types of the rows before, of columns without a value so far those of this batch; `known` is kept."""
    import pyarrow as pa

    fields = []
    for place, array in enumerate(batch.columns):
        field = batch.schema.field(place) if schema is None else schema.field(place)
        # An empty list has no value either, and says nothing of those of others.
        if len(array.flatten() if pa.types.is_list(array.type) else array.drop_null()):
            if field.name in known and array.type != field.type:
                raise DataError(
                    f"{block.where(0)}: column of {field.name!r} holds {array.type}, but {field.type} in the rows "
                    "before: give it one type in all files"
                )
            known.add(field.name)
            field = batch.schema.field(place)
        fields.append(field)
    return pa.schema(fields)


def _of_schema(batch: Any, schema: Any) -> Any:
    """A batch with the columns of a schema; a column of another type has no values."""
    import pyarrow as pa

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    alike = [
        columns[field.name] if columns[field.name].type == field.type else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(alike, schema=schema)


def write_anew(
    pieces: Sequence[Path], path: Path, schema: Any, change: Callable[[Any], Any] = lambda batch: batch
) -> None:
    """Write the rows of staged files one after another, changed, with one schema; the pieces go."""
    from pyarrow import parquet

    target = path.with_name("anew.parquet")
    with parquet.ParquetWriter(target, schema, **STAGED_FORMAT) as writer:
        for piece in pieces:
            with parquet.ParquetFile(piece) as file:
                for batch in file.iter_batches():
                    writer.write_batch(_of_schema(change(batch), schema))
            piece.unlink()
    target.rename(path)


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


def check_weights(block: RawBlock, columns: Sequence[ColumnUse], staged: Mapping[str, Any]) -> None:
    """Refuse a list of weights that is not as long as its list of ids: DataError."""
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


class StagedLog:
    """Queries over the file that `stage` wrote, with a folder for what does not fit into memory. A context manager.

    Attributes:
        file: the staged file, where it is now; sorting moves it.
    """

    def __init__(self, file: Path, work: Path, *, threads: int | None = None) -> None:
        self.file = file
        self._work = work
        self._database = open_database(f"{MEMORY_BYTES}B", work / "duckdb", threads=threads)
        self._threads = threads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def sort_by_time(self) -> None:
        """Put the rows in order of time, those of one instant as they were."""
        if not self._rows():
            return
        query = f"SELECT file_row_number AS row FROM {_scan(self.file)} ORDER BY time, row"
        self._reorder(write_ranks(self._database, query, self._work))

    def rows_of_splits(self, split: str) -> dict[int, int]:
        """How many rows each split has, by its code; `split` gives that of a row, in SQL."""
        query = f"SELECT CAST({split} AS INTEGER) AS code, count(*) FROM {_scan(self.file)} GROUP BY code ORDER BY code"
        return dict(self._database.execute(query).fetchall())

    def sort_by_session(
        self, split: str, shards: Mapping[int, int], *, cluster: bool, times: bool
    ) -> dict[int, tuple[int, ...]]:
        """Put the rows in the order of `windrow.recsys.log.clustering.external_sort.rank_sessions`.

        Args:
            split: the code of a row's split, in SQL.
            shards: by code, how many come first.
            cluster: whether sessions follow; rows of a shard stay in the order of the log otherwise.
            times: whether there are times that order rows, before their place in the log.

        Returns:
            For each split the rows of its shards, in their order.
        """
        if not self._rows():
            return dict.fromkeys(shards, ())
        keys = self._session_keys(split, shards, times=times)
        ranks, dealt = rank_sessions(self._database, keys, self._work, cluster=cluster)
        self._reorder(ranks)
        return {code: tuple(rows for (split, _), rows in dealt.items() if split == code) for code in shards}

    def ranges_of_sessions(
        self, split: str, shards: Mapping[int, int], ranges: int, *, cluster: bool
    ) -> npt.NDArray[np.integer]:
        """Which range of shards, or of hashes of sessions where there is one shard of a split, each row is in, [rows].

        In the order of `sort_by_session`, whose arguments these are, rows of a split stand range by range.
        """
        keys = self._session_keys(split, shards, times=False)
        of_hash = f"CAST((hash >> 32) * {ranges} AS BIGINT) >> 32" if cluster else "0"
        place = f"CASE WHEN shards > 1 THEN CAST(hash % shards AS BIGINT) * {ranges} // shards ELSE {of_hash} END"
        return self._numbers(f"SELECT {place} FROM {with_hash(keys)} ORDER BY row")

    def ranges_of_times(self, bounds: Sequence[int]) -> npt.NDArray[np.integer]:
        """Between which of the bounds, which do not fall, each row's time is, [rows]."""
        return np.searchsorted(np.asarray(bounds, np.int64), self._times(), side="right")

    def sorted_times(self) -> npt.NDArray[np.int64]:
        """The times of all rows, the first one first."""
        return np.sort(self._times())

    def write_dealt(self, destinations: npt.NDArray[np.integer], files: Sequence[Path]) -> None:
        """Write each row to the file that its destination names, in their order."""
        import pyarrow as pa
        from pyarrow import parquet

        first = 0
        with parquet.ParquetFile(self.file) as source, contextlib.ExitStack() as stack:
            schema = source.schema_arrow
            writers = [stack.enter_context(parquet.ParquetWriter(file, schema, **STAGED_FORMAT)) for file in files]
            for batch in source.iter_batches():
                wanted = destinations[first : first + batch.num_rows]
                first += batch.num_rows
                for place in np.unique(wanted):
                    writers[place].write_batch(batch.filter(pa.array(wanted == place)))

    def read_dealt(self, files: Sequence[Path]) -> None:
        """Take the rows of some files instead of those that were here; the files go."""
        from pyarrow import parquet

        write_anew(files, self.file, parquet.read_schema(self.file))

    def _session_keys(self, split: str, shards: Mapping[int, int], *, times: bool) -> str:
        """What `rank_sessions` asks of rows, in SQL."""
        rows = (
            f"SELECT session, file_row_number AS row, CAST({split} AS INTEGER) AS split, "
            f"{'time' if times else '0'} AS time FROM {_scan(self.file)}"
        )
        cases = " ".join(f"WHEN {code} THEN {count}" for code, count in shards.items())
        return f"SELECT *, CASE split {cases} END AS shards FROM ({rows})"

    def _rows(self) -> int:
        from pyarrow import parquet

        return int(parquet.read_metadata(self.file).num_rows)

    def _times(self) -> npt.NDArray[np.int64]:
        return self._numbers(f"SELECT time FROM {_scan(self.file)} ORDER BY file_row_number").astype(np.int64)

    def _numbers(self, query: str) -> npt.NDArray[np.integer]:
        """The only column of a query, without nulls."""
        (numbers,) = self._database.execute(query).fetchnumpy().values()
        return np.asarray(numbers)

    def time_of_row(self, row: int, *, in_order: bool) -> int:
        """The time of the row at a position in the order of time, which rows are in or are sorted for."""
        place = f"WHERE file_row_number = {row}" if in_order else f"ORDER BY time LIMIT 1 OFFSET {row}"
        query = f"SELECT time FROM {_scan(self.file)} {place}"
        return int(self._database.execute(query).fetchall()[0][0])

    def moments(self, columns: Sequence[str], chosen: str) -> dict[str, tuple[int, float, float]]:
        """Count, mean and variance of columns of numbers, over values that are not missing, of chosen rows (SQL).

        By column; mean and variance 0 without values.
        """
        if not columns:
            return {}
        # Single-threaded sums: the last digits must not depend on how threads shared the rows.
        terms = ", ".join(f"count({column}), avg({column}), var_pop({column})" for column in map(sql_name, columns))
        self._database.execute("SET threads = 1")
        row = self._database.execute(f"SELECT {terms} FROM {_scan(self.file)} WHERE {chosen}").fetchone()
        self._database.execute("RESET threads" if self._threads is None else f"SET threads = {self._threads}")
        found = np.array([value or 0 for value in row], np.float64).reshape(-1, 3).tolist()
        return {name: (int(count), mean, square) for name, (count, mean, square) in zip(columns, found, strict=True)}

    def count_values(self, path: Path, columns: Sequence[tuple[str, bool]], chosen: str) -> None:
        """Count the values of a table: a Parquet file with columns ``value`` and ``count``.

        Args:
            path: of the file.
            columns: staged columns of the table's features, and whether each holds lists.
            chosen: condition on the rows that count, in SQL.
        """
        scan = _scan(self.file)
        parts = " UNION ALL ".join(
            f"SELECT {f'unnest({sql_name(column)})' if is_list else sql_name(column)} AS value "
            f"FROM {scan} WHERE {chosen}"
            for column, is_list in columns
        )
        counted = f"SELECT value, count(*) AS count FROM ({parts}) WHERE value IS NOT NULL GROUP BY value"
        self._database.execute(f"COPY ({counted}) TO {sql_text(path)} (FORMAT parquet, COMPRESSION lz4_raw)")

    def write_vocabulary(
        self, path: Path, counts: Sequence[Path], *, min_count: int, max_rows: int | None, base: Path | None = None
    ) -> None:
        """Write the values of a table in the order of their rows.

        Args:
            path: Parquet file with columns ``id``, ``value`` and ``count``.
            counts: files of `count_values`, over which counts are added up.
            min_count: rarer values are left out.
            max_rows: of the table; None for any number.
            base: a vocabulary of earlier samples, whose values come first, in its order and however rare they are now.
        """
        limit = "" if max_rows is None else f"LIMIT {max_rows - FIRST_VALUE_ROW}"
        files = ", ".join(map(sql_text, counts))
        counted = f"SELECT value, CAST(sum(count) AS BIGINT) AS count FROM read_parquet([{files}]) GROUP BY value"
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
        with parquet.ParquetWriter(target, log.schema, **STAGED_FORMAT) as writer:
            for batch in sort_rows(
                log.batches(), ranks, row_bytes=log.row_bytes, memory_bytes=MEMORY_BYTES, folder=sorting
            ):
                writer.write_batch(batch)
        shutil.rmtree(sorting)
        self.file.unlink()
        self.file = target.rename(self._work / "staged.parquet")


def _scan(file: Path) -> str:
    return f"read_parquet({sql_text(file)}, file_row_number = true)"
