"""The columns of a log: what its files must have in common, and the types that their rows are brought to."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from windrow.comm.errors import DataError

__all__ = ["as_schema", "check_alike", "common_schema", "without_dictionaries"]


def check_alike(path: Path, schema: Any, first_path: Path, first: Any) -> None:
    """Refuse a file whose columns are not those of the first one, in any order.

    Args:
        path: of the file.
        schema: its ``pyarrow.Schema``.
        first_path: of the first file.
        first: its schema.

    Raises:
        DataError: names the column, both types and the cure.
    """
    found, wanted = (dict(zip(one.names, one.types, strict=True)) for one in (schema, first))
    if len(found) != len(schema.names):
        raise DataError(f"{path} has two columns of one name: {', '.join(schema.names)}; rename one")
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise DataError(
                f"{path} and {first_path} differ in column {name!r}: {found.get(name, 'there is none')} and "
                f"{wanted.get(name, 'there is none')}; give all files the same columns, or cluster them apart"
            )


def common_schema(first: Any, others: Iterable[Any]) -> Any:
    """The columns of a log.

    Args:
        first: ``pyarrow.Schema`` of the first file.
        others: of the others, which are alike.

    Returns:
        The first one's columns. One may hold nulls where it may in any file. Views of text and bytes, which rows cannot
        be taken from, are text and bytes: in Parquet there is no difference.
    """
    import pyarrow as pa

    nullable = {field.name for schema in (first, *others) for field in schema if field.nullable}
    fields = [_plain(field, keep_dictionaries=True) for field in first]
    return pa.schema(
        [field.with_nullable(field.name in nullable) for field in fields], metadata=first.metadata
    )


def without_dictionaries(schema: Any) -> Any:
    """The columns of a log as its rows are moved about: with values in place of positions in a dictionary.

    A dictionary belongs to a whole row group, and a few rows of it would take all of its values along. An ordered one
    stays: it is small, and the order of values is known from nothing else.

    Args:
        schema: ``pyarrow.Schema`` of the log.
    """
    import pyarrow as pa

    return pa.schema([_plain(field, keep_dictionaries=False) for field in schema], metadata=schema.metadata)


def as_schema(batch: Any, schema: Any) -> Any:
    """Bring rows of a file to the types of the log.

    Args:
        batch: ``pyarrow.RecordBatch`` with the columns of `schema`, in its order.
        schema: of some columns of the log.

    Returns:
        ``pyarrow.RecordBatch``; columns that are of their type already are not copied.
    """
    import pyarrow as pa

    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(field: Any, *, keep_dictionaries: bool) -> Any:
    """A field with text and bytes in place of views, and perhaps values in place of dictionaries, at any depth."""
    import pyarrow as pa
    from pyarrow import types

    def inner(part: Any) -> Any:
        return _plain(part, keep_dictionaries=keep_dictionaries)

    def dictionary() -> Any:
        values = inner(pa.field("values", kind.value_type)).type
        is_kept = keep_dictionaries or kind.ordered
        return pa.dictionary(kind.index_type, values, kind.ordered) if is_kept else values

    kind = field.type
    rules: tuple[tuple[Callable[[Any], bool], Callable[[], Any]], ...] = (
        (types.is_string_view, pa.string),
        (types.is_binary_view, pa.binary),
        (types.is_dictionary, dictionary),
        (types.is_struct, lambda: pa.struct([inner(part) for part in kind])),
        (
            types.is_map,
            lambda: pa.map_(inner(kind.key_field), inner(kind.item_field), keys_sorted=kind.keys_sorted),
        ),
        (types.is_list, lambda: pa.list_(inner(kind.value_field))),
        (types.is_large_list, lambda: pa.large_list(inner(kind.value_field))),
        (types.is_fixed_size_list, lambda: pa.list_(inner(kind.value_field), kind.list_size)),
    )
    return field.with_type(next((make() for is_kind, make in rules if is_kind(kind)), kind))
