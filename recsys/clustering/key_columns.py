"""The two columns that decide on the order of a clustered log: what they may hold, and how they are compared."""

from typing import Any

from windrow.comm.errors import DataError
from windrow.recsys.clustering.log_files import LogFiles

__all__ = ["check_session_type", "check_time_type", "plain_sessions", "plain_times"]


def check_session_type(log: LogFiles, by: str) -> None:
    """Refuse sessions that are neither whole numbers nor text nor bytes.

    Raises:
        DataError: names column, type and cure.
    """
    from pyarrow import types

    kind = _value_type(log.check_column(by, "--by"))
    allowed = (
        types.is_integer,
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    if not any(is_kind(kind) for is_kind in allowed):
        raise DataError(
            f"{log.files[0]}: --by names {by!r} of type {kind}, expected whole numbers, text or bytes: convert the "
            "column, or name another one"
        )


def check_time_type(log: LogFiles, time: str) -> None:
    """Refuse times without an order that is certain, such as text.

    Raises:
        DataError: names column, type and cure.
    """
    from pyarrow import types

    kind = log.check_column(time, "--time")
    # DuckDB, which sorts, has neither floats of 16 bits nor decimals of more than 38 digits.
    allowed = (
        types.is_integer,
        types.is_float32,
        types.is_float64,
        types.is_decimal128,
        types.is_date,
        types.is_time,
    )
    if not (types.is_timestamp(kind) or any(is_kind(kind) for is_kind in allowed)):
        raise DataError(
            f"{log.files[0]}: --time names {time!r} of type {kind}, expected numbers, dates or times: convert the "
            "column, name another one, or leave rows in their order with --no-sort"
        )


def plain_sessions(column: Any) -> Any:
    """A column of sessions, as whole numbers, text or bytes of one kind.

    Args:
        column: ``pyarrow.Array``, perhaps with a dictionary or of fixed size.

    Returns:
        The same values as int64, uint64, large_string or large_binary.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = _value_type(column.type)
    if types.is_integer(kind):
        return column.cast(pa.uint64() if types.is_unsigned_integer(kind) else pa.int64())
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if types.is_dictionary(column.type):
        column = column.cast(kind)
    return column.cast(pa.large_string() if is_text else pa.large_binary())


def plain_times(column: Any) -> Any:
    """A column of times, as numbers of the same order.

    DuckDB 1.1 cuts nanoseconds off times of the day and off those with a zone; newer ones do not.

    Args:
        column: ``pyarrow.Array`` of numbers, dates or times.

    Returns:
        Dates and times as int32 or int64, in their unit; numbers as they are.
    """
    import pyarrow as pa
    from pyarrow import types

    if not types.is_temporal(column.type):
        return column
    return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())


def _value_type(kind: Any) -> Any:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind
