"""The vocabularies of a store: counted in the staged log, one for each table that features share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError
from windrow.recsys.log_options import LogOptions
from windrow.recsys.staged_log import StagedLog

__all__ = ["read_values", "write_vocabularies"]

FOLDER_NAME = "vocabularies"


def write_vocabularies(
    folder: Path, staged: StagedLog, log: LogOptions, training: str, report: Callable[[str, float], None]
) -> dict[str, Path]:
    """Count values and write the vocabulary of each table that has one.

    Args:
        folder: of the store.
        staged: the log.
        log: says which features there are.
        training: condition on the rows of the training split, in SQL.
        report: told how far it is.

    Returns:
        The file of each table.

    Raises:
        DataError: features that share a table hold values of different types.
    """
    tables = {
        table: features
        for table, features in log.tables().items()
        if log.features[features[0]].ids == "vocabulary"
    }
    if tables:
        (folder / FOLDER_NAME).mkdir()
    written = {}
    for place, (table, features) in enumerate(tables.items()):
        report(f"counting {table}", place / len(tables))
        written[table] = folder / FOLDER_NAME / f"{table}.parquet"
        _check_one_type(staged.file, table, features)
        rule = log.features[features[0]]
        staged.write_vocabulary(
            written[table],
            [(f"id.{name}", log.features[name].multi_hot) for name in features],
            training,
            min_count=rule.min_count,
            max_rows=rule.rows,
        )
    return written


def _check_one_type(staged: Path, table: str, features: tuple[str, ...]) -> None:
    """Features that share a vocabulary have to have values of one type."""
    from pyarrow import parquet, types

    schema = parquet.read_schema(staged)
    kinds = [schema.field(f"id.{name}").type for name in features]
    found = {str(kind.value_type if types.is_list(kind) else kind) for kind in kinds}
    if len(found) > 1:
        raise DataError(
            f"features {', '.join(features)} share table {table!r}, but hold {' and '.join(sorted(found))}: give their "
            "columns one type, or the features a table each"
        )


def read_values(path: Path) -> Any:
    """The values of a vocabulary as one ``pyarrow.Array``: row `FIRST_VALUE_ROW` of the table is that of the first.

    Args:
        path: file that `write_vocabularies` wrote.
    """
    import pyarrow as pa
    from pyarrow import parquet

    column = parquet.read_table(path, columns=["value"])["value"]
    # One array: positions in it are rows of the table. Text of a billion bytes and more needs wide offsets.
    wide = pa.types.is_string(column.type)
    return (column.cast(pa.large_string()) if wide else column).combine_chunks()
