"""Columns of any type turned into the few types that a prepared log is made of; all that does not fit is refused.

label     number or truth value     -> float32, 0 or 1
real      number, or text of one    -> float32, finite
weight    number, or text of one    -> float32, finite, 0 or more
number    number, or text of one    -> float32; nothing or NaN: null
id        whole number or text      -> int64 or string; nothing or empty text: null
ids       list, or text with marks  -> list of int64 or string; nothing: null
weights   list of numbers, or text  -> list of float32
time      whole number, date, text  -> int64; microseconds since 1970 unless whole numbers
key       whole number or text      -> int64; of text its hash
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.jagged import offsets_of_lengths
from windrow.recsys.log.clustering.log_files import is_text
from windrow.recsys.log.readers import RawBlock
from windrow.recsys.log.vocabulary import hash_values

__all__ = ["Column", "ColumnKind", "as_text_or_numbers", "conform", "list_lengths", "row_of"]

ColumnKind = Literal["label", "real", "weight", "number", "id", "row", "ids", "rows", "weights", "time", "key"]
"""What a column is needed as; row and rows are id and ids that have to be whole numbers."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a block, with its place for messages.

    Attributes:
        array: ``pyarrow.Array``.
        name: of the column.
        block: that it is from.
        separator: between the values of a field of text that is a list.
    """

    array: Any
    name: str
    block: RawBlock
    separator: str = "|"

    def refuse(self, row: int, message: str) -> DataError:
        """An error that names the place of a row."""
        return DataError(f"{self.block.where(row)}: column {self.name!r} {message}")

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


def conform(column: Column, kind: ColumnKind) -> Any:
    """Turn a column into what it is needed as: ``pyarrow.Array`` of the type above.

    Raises:
        DataError: the type does not fit, or a value does not; the message names file and row.
    """
    if kind in ("id", "row"):
        return _id(column, column.array, whole_numbers=kind == "row")
    if kind in ("ids", "rows", "weights"):
        inner = {"ids": "", "rows": "int64", "weights": "float32"}[kind]
        return _list(column, inner)
    return {"label": _label, "real": _real, "weight": _weight, "number": _number, "time": _time, "key": _key}[kind](
        column
    )


def _label(column: Column) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    numbers = _number(column)
    column.refuse_first(numbers.is_null(), "is empty ({}), expected 0 or 1: leave such rows out, or fill them in")
    wrong = compute.and_(compute.not_equal(numbers, pa.scalar(0, pa.float32())), compute.not_equal(numbers, 1))
    column.refuse_first(wrong, "is {}, expected 0 or 1: name the right column as label, or turn it into 0 and 1")
    return numbers


def _real(column: Column) -> Any:
    numbers = _number(column)
    column.refuse_first(numbers.is_null(), "is empty ({}), expected a number: leave such rows out, or fill them in")
    return numbers


def _weight(column: Column) -> Any:
    from pyarrow import compute

    numbers = _real(column)
    column.refuse_first(compute.less(numbers, 0), "is {}, expected a weight of 0 or more")
    return numbers


def _number(column: Column) -> Any:
    import pyarrow as pa
    from pyarrow import compute, types

    kind = column.array.type
    values = column.array
    if is_text(kind):
        values = _parsed(column, _blank_to_null(values), "float64", "a number")
    elif not any(
        is_kind(kind)
        for is_kind in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    ):
        raise column.refuse_type("numbers")
    if pa.types.is_boolean(kind):
        values = values.cast("int8")
    numbers = values.cast("float32", safe=False)
    column.refuse_first(compute.is_inf(numbers), "is {}: expected a number that float32 can hold")
    if pa.types.is_floating(values.type):
        # NaN is how many tools write a missing number.
        numbers = compute.if_else(compute.is_nan(numbers), pa.scalar(None, pa.float32()), numbers)
    return numbers


def _id(column: Column, values: Any, *, whole_numbers: bool, lists: Any = None) -> Any:
    """Ids, of the column itself or of the elements of its lists."""
    import pyarrow as pa
    from pyarrow import compute

    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = values.type
    if pa.types.is_null(kind):
        return values.cast("int64" if whole_numbers else "string")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _parsed(column, values, "int64", "an id of at most 63 bits: store ids as int64", lists)
    if pa.types.is_floating(kind):
        # pandas turns whole numbers into floats where one is missing.
        known = compute.if_else(compute.is_nan(values), pa.scalar(None, kind), values)
        return _parsed(column, known, "int64", "a whole number as id", lists)
    if not is_text(kind):
        raise column.refuse_type("whole numbers or text")
    text = _blank_to_null(values.cast("string"))
    return _parsed(column, text, "int64", "a row number", lists) if whole_numbers else text


def _list(column: Column, inner: str) -> Any:
    """Lists with elements of a type; "" for ids."""
    import pyarrow as pa
    from pyarrow import compute

    lists = column.array
    if is_text(lists.type):
        lists = compute.split_pattern(_blank_to_null(lists.cast("string")), column.separator)
    elif pa.types.is_null(lists.type):
        lists = lists.cast(pa.list_(pa.string()))
    elif pa.types.is_fixed_size_list(lists.type) or pa.types.is_large_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_type))
    if not pa.types.is_list(lists.type):
        raise column.refuse_type("lists, or text with a separator")
    # `flatten` passes over what stands behind a null list; the lengths have to agree with that.
    elements = lists.flatten()
    if inner == "float32":
        if not (pa.types.is_floating(elements.type) or pa.types.is_integer(elements.type)):
            elements = _parsed(column, elements, "float64", "a number", lists)
        elements = elements.cast("float32", safe=False)
        finite = compute.is_finite(elements).fill_null(fill_value=False)
        if not compute.all(finite, min_count=0).as_py():
            row = row_of(lists, int(np.argmin(finite.to_numpy(zero_copy_only=False))))
            raise column.refuse(row, f"is {lists[row].as_py()}: a weight must be a finite number")
    else:
        elements = _id(column, elements, whole_numbers=inner == "int64", lists=lists)
    return _list_array(lists, elements)


def as_text_or_numbers(column: Column, ids: Any, *, is_text: bool) -> Any:
    """Ids, single or in lists, as text or as whole numbers, whichever a log that was prepared before had.

    Raises:
        DataError: text is no whole number.
    """
    import pyarrow as pa

    is_list = pa.types.is_list(ids.type)
    values = ids.flatten() if is_list else ids
    if is_text == pa.types.is_string(values.type):
        return ids
    lists = ids if is_list else None
    found = values.cast("string") if is_text else _parsed(column, values, "int64", "a whole number, as before", lists)
    return _list_array(ids, found) if is_list else found


def _list_array(lists: Any, elements: Any) -> Any:
    """Lists as long as `lists`, null where it is null, with other elements."""
    import pyarrow as pa

    offsets = pa.array(offsets_of_lengths(list_lengths(lists)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=lists.is_null() if lists.null_count else None)


def list_lengths(lists: Any) -> npt.NDArray[np.int64]:
    """How long each list of a ``pyarrow.ListArray`` is; a null list has length 0."""
    from pyarrow import compute

    lengths: npt.NDArray[np.int64] = (
        compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def row_of(lists: Any, element: int) -> int:
    """The row whose list holds an element."""
    return int(np.searchsorted(np.cumsum(list_lengths(lists)), element, side="right"))


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
        row = element if lists is None else row_of(lists, element)
        raise column.refuse(row, f"has {text[element].as_py()!r}, expected {expected}") from error


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
