"""Columns of any type turned into the few types that a prepared log is made of; all that does not fit is refused.

label     number or truth value     -> float32, 0 or 1
real      number, or text of one    -> float32, finite
weight    number, or text of one    -> float32, finite, 0 or more
number    number, or text of one    -> float64, no larger than float32 can hold; nothing or NaN: null
id        whole number or text      -> int64 or string; nothing or empty text: null
ids       list, or text with marks  -> list of int64 or string; nothing: null
weights   list of numbers, or text  -> list of float32
time      whole number, date, text  -> int64; microseconds since 1970 unless whole numbers
key       whole number or text      -> int64; of text its hash
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.jagged import offsets_of_lengths
from windrow.recsys.log.clustering.log_files import is_text
from windrow.recsys.log.readers import RawBlock
from windrow.recsys.log.vocabulary import hash_values

__all__ = ["Column", "ColumnKind", "ColumnUse", "conform", "list_lengths"]

ColumnKind = Literal["label", "real", "weight", "number", "id", "row", "ids", "rows", "weights", "time", "key"]
"""What a column is needed as; row and rows are id and ids that have to be whole numbers."""


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """One column that is needed of a log, and what it becomes."""

    name: str
    """In the staged file."""
    column: str
    """In the log."""
    kind: ColumnKind
    """What it is needed as."""
    separator: str = "|"
    """Of lists in text."""
    rows: int | None = None
    """row and rows only: what the numbers have to be below; None for any."""
    is_text: bool | None = None
    """id and ids only: whether values are to be text, or whole numbers; None: as they are."""


class Column(NamedTuple):
    """One column of a block, with its place for messages.

    Attributes:
        array: ``pyarrow.Array``.
        use: what it is needed as.
        block: that it is from.
    """

    array: Any
    use: ColumnUse
    block: RawBlock

    def refuse(self, row: int, message: str) -> DataError:
        """An error that names the place of a row."""
        return DataError(f"{self.block.where(row)}: column {self.use.column!r} {message}")

    def refuse_type(self, expected: str) -> DataError:
        """An error about the type of the whole column."""
        return self.refuse(0, f"has type {self.array.type}, expected {expected}: convert it, or name another column")

    def refuse_first(self, bad: Any, message: str) -> None:
        """Raise a DataError for the first row that is marked, if any is.

        Args:
            bad: [n] truth values, Arrow (null counts as false) or NumPy.
            message: about the value, with ``{}`` where it goes.
        """
        marked = bad if isinstance(bad, np.ndarray) else bad.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        if marked.any():
            row = int(marked.argmax())
            raise self.refuse(row, message.format(repr(self.array[row].as_py())))


def conform(column: Column) -> Any:
    """Turn a column into what it is needed as: ``pyarrow.Array`` of the type above.

    Raises:
        DataError: the type does not fit, or a value does not; the message names file and row.
    """
    kind = column.use.kind
    if kind == "time":
        return _time(column)
    if kind == "key":
        return _key(column)
    if kind in ("id", "row"):
        found = _id(column, column.array, whole_numbers=kind == "row")
    elif kind in ("ids", "rows", "weights"):
        found = _list(column)
    else:
        return _number(column)
    if column.use.rows is not None:
        _check_rows(column, found, column.use.rows)
    return found


def _number(column: Column) -> Any:
    import pyarrow as pa
    from pyarrow import compute, types

    values = column.array
    if is_text(values.type):
        values = _parsed(column, _blank_to_null(values), "float64", "a number")
    elif types.is_boolean(values.type):
        values = values.cast("int8")
    is_number = types.is_integer, types.is_floating, types.is_decimal, types.is_null
    if not any(is_kind(values.type) for is_kind in is_number):
        raise column.refuse_type("numbers")
    column.refuse_first(
        compute.is_inf(values.cast("float32", safe=False)), "is {}: expected a number that float32 can hold"
    )
    # Times and amounts differ in digits that float32 has not; what is to be standard is rounded after that.
    numbers = values.cast("float64" if column.use.kind == "number" else "float32", safe=False)
    # NaN is how many tools write a missing number.
    numbers = compute.if_else(compute.is_nan(numbers), pa.scalar(None, numbers.type), numbers)
    if column.use.kind == "number":
        return numbers
    expected = "0 or 1" if column.use.kind == "label" else "a number"
    column.refuse_first(
        numbers.is_null(), f"is empty ({{}}), expected {expected}: leave such rows out, or fill them in"
    )
    if column.use.kind == "label":
        wrong = compute.invert(compute.is_in(numbers, pa.array([0, 1], pa.float32())))
        column.refuse_first(wrong, "is {}, expected 0 or 1: name the right column as label, or turn it into 0 and 1")
    elif column.use.kind == "weight":
        column.refuse_first(compute.less(numbers, 0), "is {}, expected a weight of 0 or more")
    return numbers


def _check_rows(column: Column, values: Any, rows: int) -> None:
    """Row numbers, single or in lists, have to be there and inside the table."""
    from pyarrow import compute, types

    lists = values if types.is_list(values.type) else None
    flat = values if lists is None else values.flatten()
    wrong = compute.or_(compute.less(flat, 0), compute.greater_equal(flat, rows)).fill_null(fill_value=True)
    if compute.any(wrong).as_py():
        place = int(wrong.to_numpy(zero_copy_only=False).argmax())
        raise column.refuse(
            _row_of(lists, place),
            f'has {flat[place].as_py()} where ids = "rows" expects a row number in 0 to {rows - 1}: raise rows, or '
            'take ids = "vocabulary" or "hash"',
        )


def _id(column: Column, values: Any, *, whole_numbers: bool, lists: Any = None) -> Any:
    """Ids, of the column itself or of the elements of its lists."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if pa.types.is_null(kind):
        values = values.cast("int64" if whole_numbers else "string")
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = _parsed(column, values, "int64", "an id of at most 63 bits: store ids as int64", lists)
    elif pa.types.is_floating(kind):
        # pandas turns whole numbers into floats where one is missing.
        known = compute.if_else(compute.is_nan(values), pa.scalar(None, kind), values)
        values = _parsed(column, known, "int64", "a whole number as id", lists)
    elif not is_text(kind):
        raise column.refuse_type("whole numbers or text")
    else:
        values = _blank_to_null(values.cast("string"))
        if whole_numbers:
            values = _parsed(column, values, "int64", "a row number", lists)
    if column.use.is_text is False:
        return _parsed(column, values, "int64", "a whole number, as before", lists)
    return values.cast("string") if column.use.is_text else values


def _list(column: Column) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    lists = column.array
    if is_text(lists.type):
        lists = compute.split_pattern(_blank_to_null(lists.cast("string")), column.use.separator)
    elif pa.types.is_null(lists.type):
        lists = lists.cast(pa.list_(pa.string()))
    elif pa.types.is_fixed_size_list(lists.type) or pa.types.is_large_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    if not pa.types.is_list(lists.type):
        raise column.refuse_type("lists, or text with a separator")
    # `flatten` passes over what stands behind a null list; the lengths have to agree with that.
    elements = lists.flatten()
    if column.use.kind == "weights":
        if not (pa.types.is_floating(elements.type) or pa.types.is_integer(elements.type)):
            elements = _parsed(column, elements, "float64", "a number", lists)
        elements = elements.cast("float32", safe=False)
        finite = compute.is_finite(elements).fill_null(fill_value=False)
        if not compute.all(finite, min_count=0).as_py():
            row = _row_of(lists, int(np.argmin(finite.to_numpy(zero_copy_only=False))))
            raise column.refuse(row, f"is {lists[row].as_py()}: a weight must be a finite number")
    else:
        elements = _id(column, elements, whole_numbers=column.use.kind == "rows", lists=lists)
    offsets = pa.array(offsets_of_lengths(list_lengths(lists)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=lists.is_null() if lists.null_count else None)


def list_lengths(lists: Any) -> npt.NDArray[np.int64]:
    """How long each list of a ``pyarrow.ListArray`` is; a null list has length 0."""
    from pyarrow import compute

    lengths: npt.NDArray[np.int64] = (
        compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _row_of(lists: Any, element: int) -> int:
    """The row whose list holds an element; that of the element itself where there are no lists."""
    return element if lists is None else int(np.searchsorted(np.cumsum(list_lengths(lists)), element, side="right"))


def _time(column: Column) -> Any:
    import pyarrow as pa

    kind = column.array.type
    column.refuse_first(column.array.is_null(), "is empty ({}): every sample needs a time")
    if pa.types.is_integer(kind):
        return _parsed(column, column.array, "int64", "a time of at most 63 bits")
    if pa.types.is_timestamp(kind):
        return column.array.cast(pa.timestamp("us", kind.tz), safe=False).cast("int64")
    if pa.types.is_date(kind):
        return column.array.cast(pa.timestamp("us")).cast("int64")
    if not is_text(kind):
        raise column.refuse_type("whole numbers, dates and times, or text of these")
    attempts = ("int64", pa.timestamp("us", "UTC"), pa.timestamp("us"))
    for attempt in attempts:
        try:
            return column.array.cast(attempt).cast("int64")
        except pa.ArrowInvalid:
            continue
    # What most of the rows above are is what this one should be.
    row = max(_first_refused(column.array, attempt) for attempt in attempts)
    raise column.refuse(
        row,
        f"is {column.array[row].as_py()!r}: expected a whole number or an ISO date or time, of one kind in all rows",
    )


def _key(column: Column) -> Any:
    import pyarrow as pa

    values = _id(column, column.array, whole_numbers=False)
    column.refuse_first(values.is_null(), "is empty ({}): every sample needs one")
    if pa.types.is_integer(values.type):
        return values
    return pa.array(hash_values(values, stream_key(0, Stream.HASH_VALUES)).view(np.int64))


def _parsed(column: Column, text: Any, kind: str, expected: str, lists: Any = None) -> Any:
    """Values of a column, or elements of its lists, cast to a type that not all may fit."""
    import pyarrow as pa

    try:
        return text.cast(kind)
    except pa.ArrowInvalid as error:
        element = _first_refused(text, kind)
        raise column.refuse(_row_of(lists, element), f"has {text[element].as_py()!r}, expected {expected}") from error


def _first_refused(values: Any, kind: Any) -> int:
    """The first of some values that cannot be cast, where one cannot: by halving, O(n)."""
    import pyarrow as pa

    start, stop = 0, len(values)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            values.slice(start, middle - start).cast(kind)
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start


def _blank_to_null(text: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    blank = compute.equal(compute.binary_length(text), 0)
    if not compute.any(blank).as_py():
        return text
    return compute.if_else(blank, pa.scalar(None, text.type), text)
