"""Read implicit feedback from files.

npz, users x items in compressed sparse rows::

    train_indptr  [users + 1]   train_items [n]        required
    test_indptr   [users + 1]   test_items  [m]        required

Parquet and CSV (also .tsv, .gz): one row for each interaction, with a column of users and one of items, both
integers from 0; one file for each split.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError
from windrow.comm.npz_file import integer_row, load_arrays
from windrow.recsys.interactions import (
    Interactions,
    ItemLists,
    carve_validation,
    check_interactions,
    item_lists_from_pairs,
)

__all__ = ["read_interactions"]

IntArray = npt.NDArray[np.int64]

MOST_UNUSED_NUMBERS = 1_000_000
MOST_NUMBERS_PER_PAIR = 100
"""A user or item number beyond the first plus this for each interaction is a hash or a mistake."""


def read_interactions(
    train_path: Path,
    test_path: Path | None = None,
    *,
    user_column: str = "user",
    item_column: str = "item",
    validation_fraction: float = 0.0,
    seed: int,
) -> Interactions:
    """Read a data set of implicit feedback, whole, into memory (8 bytes for each interaction and user).

    Items of each user may come in any order. There are as many users and items as the largest ids of both splits
    ask for.

    Args:
        train_path: an npz file with both splits, or a Parquet or CSV file with the training split.
        test_path: a Parquet or CSV file with the test split; None for an npz file, or for no test split.
        user_column: in Parquet and CSV files.
        item_column: in Parquet and CSV files.
        validation_fraction: share of each user's training items that become the validation split.
        seed: of that choice.

    Returns:
        Checked interactions.

    Raises:
        DataError: a file is missing, damaged or of another layout, or its interactions break a law.
        RecipeError: the fraction is out of range.
    """
    if train_path.suffix == ".npz":
        train, test = (_sorted_lists(lists) for lists in _read_npz(train_path))
    else:
        nothing = np.zeros(0, dtype=np.int64)
        pairs = [_read_pairs(train_path, user_column, item_column), (nothing, nothing)]
        if test_path is not None:
            pairs[1] = _read_pairs(test_path, user_column, item_column)
        for numbers, column in ((0, user_column), (1, item_column)):
            _check_dense_numbers(train_path, column, [split[numbers] for split in pairs])
        num_users = max(int(users.max(initial=-1)) for users, _ in pairs) + 1
        train, test = (item_lists_from_pairs(users, items, num_users) for users, items in pairs)
    num_items = max(int(lists.items.max(initial=-1)) for lists in (train, test)) + 1
    whole = Interactions(train.num_users, num_items, train, _no_items(train.num_users), test)
    check_interactions(whole, str(train_path))
    kept, validation = carve_validation(train, validation_fraction, seed=seed)
    return Interactions(train.num_users, num_items, kept, validation, test)


def _check_dense_numbers(path: Path, column: str, numbers: list[IntArray]) -> None:
    """Every number up to the largest gets a row of a table: hashes for numbers would ask for all memory."""
    largest = max(int(split.max(initial=-1)) for split in numbers)
    found = sum(len(split) for split in numbers)
    if largest >= MOST_UNUSED_NUMBERS + MOST_NUMBERS_PER_PAIR * found:
        raise DataError(
            f"{path}: column {column!r} has the number {largest} among {found} interactions: number users and items "
            "from 0 without gaps, since each number up to the largest gets a row of a table"
        )


def _no_items(num_users: int) -> ItemLists:
    return ItemLists(np.zeros(num_users + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))


def _sorted_lists(lists: ItemLists) -> ItemLists:
    """The same lists, each in ascending order; damaged ones as they are, for the check to name what is wrong."""
    indptr = lists.indptr
    if indptr.ndim != 1 or len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(lists.items):
        return lists
    if (np.diff(indptr) < 0).any():
        return lists
    return ItemLists(indptr, lists.items[np.lexsort((lists.items, lists.users))])


def _read_npz(path: Path) -> tuple[ItemLists, ItemLists]:
    arrays = load_arrays(path)
    train, test = (
        ItemLists(integer_row(path, arrays, f"{split}_indptr"), integer_row(path, arrays, f"{split}_items"))
        for split in ("train", "test")
    )
    return train, test


def _read_pairs(path: Path, user_column: str, item_column: str) -> tuple[IntArray, IntArray]:
    import pyarrow as pa
    import pyarrow.csv
    from pyarrow import parquet

    wanted = [user_column, item_column]
    try:
        if path.suffix == ".parquet":
            present = parquet.read_schema(path).names
            _check_columns(path, wanted, present)
            table = parquet.read_table(path, columns=wanted)
        else:
            delimiter = "\t" if ".tsv" in path.suffixes else ","
            table = pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(delimiter=delimiter))
            _check_columns(path, wanted, table.column_names)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; correct the path or fetch the data") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: no readable table ({error}); fetch or write it again") from error
    users, items = (_ids(path, name, table.column(name)) for name in wanted)
    return users, items


def _check_columns(path: Path, wanted: list[str], present: list[str]) -> None:
    for name in wanted:
        if name not in present:
            raise DataError(
                f"{path}: there is no column {name!r}; the columns are {present}. Correct the name"
            )


def _ids(path: Path, name: str, column: "object") -> IntArray:
    import pyarrow as pa

    assert isinstance(column, pa.ChunkedArray)
    if not pa.types.is_integer(column.type):
        raise DataError(f"{path}: column {name!r} has type {column.type}; number users and items from 0")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DataError(f"{path}, row {row + 1}: column {name!r} is empty; fill it in")
    ids: IntArray = column.to_numpy().astype(np.int64)
    if len(ids) and ids.min() < 0:
        row = int(np.flatnonzero(ids < 0)[0])
        raise DataError(
            f"{path}, row {row + 1}: column {name!r} is {ids[row]}; number users and items from 0"
        )
    return ids
