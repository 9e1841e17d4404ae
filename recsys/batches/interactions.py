"""Implicit feedback: which user took which items, and nothing else.

Each split is one compressed sparse row matrix, users x items::

    user 0 took 2 5, user 1 nothing, user 2 took 0        indptr  0 2 2 3
                                                          items   2 5 0

Training items are what a model learns from and what a user's history is made of; the other two splits hold items
that the user took too, to be found among all items that are not in the history.

It is read from npz files, users x items in compressed sparse rows::

    train_indptr  [users + 1]   train_items [n]        required
    test_indptr   [users + 1]   test_items  [m]        required

or from Parquet and CSV (also .tsv, .gz): one row for each interaction, with a column of users and one of items, both
integers from 0; one file for each split.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.numpy_files import integer_row, load_arrays
from windrow.comm.options import NonNegativeFloat, NonNegativeInt, PositiveInt, Probability, checked_dataclass
from windrow.comm.random import Stream, hash_ids, stream_key
from windrow.recsys.batches.arrow_columns import Lists
from windrow.recsys.batches.jagged import Jagged, check_lists
from windrow.recsys.log.conform import Column, ColumnUse, conform
from windrow.recsys.log.files import resolve_files
from windrow.recsys.log.readers import read_log

__all__ = [
    "InteractionOptions",
    "Interactions",
    "carve_validation",
    "check_interactions",
    "item_lists_from_pairs",
    "read_interactions",
]


@checked_dataclass
class InteractionOptions:
    """Columns, validation split, neighbourhoods and negatives of a log of format "interactions"."""

    user_column: str = "user"
    """Parquet and CSV only: column of user numbers, from 0."""
    item_column: str = "item"
    """Parquet and CSV only: column of item numbers, from 0."""
    validation_fraction: Probability = 0.0
    """Share of each user's training items that are set apart to choose settings by, in [0, 1)."""
    max_history: NonNegativeInt = 50
    """The most items of a user's past that a training sample holds; 0: users are told by their number alone.
    Evaluation takes all of them."""
    max_audience: NonNegativeInt = 50
    """The most users of an item that a training sample holds; 0: items are told by their number alone. Evaluation
    takes all of them."""
    num_negatives: PositiveInt = 1024
    """Items that every positive of a step is told apart from; all positives share them."""
    negative_exponent: NonNegativeFloat = 0.0
    """Items are drawn with probability proportional to their count to this power: 0: all alike, 1: by popularity."""
    log_q_correction: bool = False
    """Whether the loss subtracts the logarithm of these probabilities from scores."""


IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interactions:
    """A data set of implicit feedback; check one with `check_interactions`.

    A split has the items of each user, ascending, none twice: a compressed sparse row matrix without values.

    Attributes:
        num_users: users are 0 .. num_users - 1, in all splits.
        num_items: items are 0 .. num_items - 1.
        train: what a model learns from.
        validation: to choose settings by; may be empty.
        test: to report; may be empty.
    """

    num_users: int
    num_items: int
    train: Lists
    validation: Lists
    test: Lists

    def splits(self) -> dict[str, Lists]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def item_counts(self) -> IntArray:
        """[num_items] how many users took each item in the training split."""
        return np.bincount(self.train.values, minlength=self.num_items).astype(np.int64)

    def fingerprint(self) -> str:
        """SHA-256 of all splits, in hexadecimal: equal where two runs see the same data."""
        digest = hashlib.sha256(f"{self.num_users} {self.num_items}".encode())
        for name, lists in self.splits().items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(lists.offsets, dtype="<i8").data)
            digest.update(np.ascontiguousarray(lists.values, dtype="<i8").data)
        return digest.hexdigest()


def item_lists_from_pairs(users: IntArray, items: IntArray, num_users: int) -> Lists:
    """Sort pairs of users, in [0, num_users), and items [n] into a list for each user, by item.

    Pairs that occur twice still do. Cost: one sort.
    """
    order = np.lexsort((items, users))
    return Jagged.of_lengths(items[order], np.bincount(users, minlength=num_users))


def carve_validation(train: Lists, fraction: float, *, seed: int) -> tuple[Lists, Lists]:
    """Move a share in [0, 1) of each user's training items to a validation split.

    Of n items a user gives up ``floor(fraction * n)``, those with the smallest hash of (seed, user, item): the
    choice depends on nothing else.

    Returns:
        What is left to train on, and the validation split, empty where `fraction` is 0.

    Raises:
        RecipeError: the fraction is out of range.
    """
    if not 0 <= fraction < 1:
        raise RecipeError(f"validation_fraction = {fraction}: expected at least 0 and less than 1")
    users = train.rows
    user_keys = hash_ids(stream_key(seed, Stream.SPLIT), users)
    keys = hash_ids(0, user_keys ^ train.values.astype(np.uint64))
    order = np.lexsort((keys, users))
    # Sorted by user, entry i is the (i - offsets[user])-th smallest of its user.
    chosen = np.empty(len(users), dtype=bool)
    chosen[order] = np.arange(len(users)) - train.offsets[users] < (train.lengths * fraction).astype(np.int64)[users]
    kept, taken = (item_lists_from_pairs(users[mask], train.values[mask], len(train)) for mask in (~chosen, chosen))
    return kept, taken


def check_interactions(interactions: Interactions, source: str) -> None:
    """Refuse interactions that break a law; errors name where they come from.

    Raises:
        DataError: an item out of range, or twice for a user, in one split or in two; nothing to train on. The message
            names split and user.
    """
    num_items, pairs, owners = interactions.num_items, [], []
    for number, (split, lists) in enumerate(interactions.splits().items()):
        outside = np.flatnonzero((lists.values < 0) | (lists.values >= num_items))
        if len(outside):
            at = int(outside[0])
            place = f"{source}, {split}, user {lists.rows[at]}"
            raise DataError(f"{place}: item {lists.values[at]} is not in 0 .. {num_items - 1}; number items from 0")
        pairs.append(lists.rows * num_items + lists.values)
        owners.append(np.full(len(lists.values), number))
    if len(interactions.train.values) == 0:
        raise DataError(f"{source}: the training split is empty; give at least one user an item")
    together, split_of = np.concatenate(pairs), np.concatenate(owners)
    order = np.argsort(together, kind="stable")
    twice = np.flatnonzero(np.diff(together[order]) == 0)
    if len(twice):
        user, item = divmod(int(together[order[twice[0]]]), num_items)
        first, second = (list(interactions.splits())[split_of[order[place]]] for place in (twice[0], twice[0] + 1))
        where = f"occurs twice in {first}" if first == second else f"is in {first} and in {second}"
        raise DataError(f"{source}, user {user}: item {item} {where} ({len(twice)} such pairs); keep it in one place")


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
    nothing = np.zeros(0, np.int64)
    if train_path.suffix == ".npz":
        given = _read_npz(train_path)
        pairs = [(lists.rows, lists.values) for lists in given]
        num_users = len(given[0])
    else:
        pairs = [_read_pairs(train_path, user_column, item_column), (nothing, nothing)]
        if test_path is not None:
            pairs[1] = _read_pairs(test_path, user_column, item_column)
        for numbers, column in ((0, user_column), (1, item_column)):
            _check_dense_numbers(train_path, column, [split[numbers] for split in pairs])
        num_users = max(int(users.max(initial=-1)) for users, _ in pairs) + 1
    train, test = (item_lists_from_pairs(users, items, num_users) for users, items in pairs)
    num_items = max(int(items.max(initial=-1)) for _, items in pairs) + 1
    whole = Interactions(num_users, num_items, train, item_lists_from_pairs(nothing, nothing, num_users), test)
    check_interactions(whole, str(train_path))
    kept, validation = carve_validation(train, validation_fraction, seed=seed)
    return Interactions(num_users, num_items, kept, validation, test)


def _check_dense_numbers(path: Path, column: str, numbers: list[IntArray]) -> None:
    """Every number up to the largest gets a row of a table: hashes for numbers would ask for all memory."""
    largest = max(int(split.max(initial=-1)) for split in numbers)
    found = sum(len(split) for split in numbers)
    if largest >= MOST_UNUSED_NUMBERS + MOST_NUMBERS_PER_PAIR * found:
        raise DataError(
            f"{path}: column {column!r} has the number {largest} among {found} interactions: number users and items "
            "from 0 without gaps, since each number up to the largest gets a row of a table"
        )


def _read_npz(path: Path) -> list[Lists]:
    arrays = load_arrays(path)
    found = []
    for split in ("train", "test"):
        lists = Jagged(integer_row(path, arrays, f"{split}_items"), integer_row(path, arrays, f"{split}_indptr"))
        check_lists(lists, f"{path}, {split}", "user {}".format)
        found.append(lists)
    if len(found[0]) != len(found[1]):
        raise DataError(
            f"{path}, test: {len(found[1]) + 1} offsets for {len(found[0])} users; need one more than there are users"
        )
    return found


def _read_pairs(path: Path, user_column: str, item_column: str) -> tuple[IntArray, IntArray]:
    from pyarrow import compute

    users: list[IntArray] = []
    items: list[IntArray] = []
    blocks = read_log(
        "parquet" if path.suffix == ".parquet" else "csv",
        resolve_files([path]),
        {user_column: "int64", item_column: "int64"},
    )
    for block in blocks:
        for name, found in ((user_column, users), (item_column, items)):
            if name not in block.columns_in_file:
                raise DataError(
                    f"{path}: there is no column {name!r}; the columns are {', '.join(block.columns_in_file)}. "
                    "Correct the name"
                )
            column = Column(block.batch.column(name), ColumnUse(name, name, "row"), block)
            ids = conform(column)
            column.refuse_first(ids.is_null(), "is empty ({}): fill it in")
            column.refuse_first(compute.less(ids, 0), "is {}: number users and items from 0")
            found.append(ids.to_numpy())
    return np.concatenate(users), np.concatenate(items)
