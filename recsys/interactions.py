"""Implicit feedback: which user took which items, and nothing else.

Each split is one compressed sparse row matrix, users x items::

    user 0 took 2 5, user 1 nothing, user 2 took 0        indptr  0 2 2 3
                                                          items   2 5 0

Training items are what a model learns from and what a user's history is made of; the other two splits hold items
that the user took too, to be found among all items that are not in the history.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError
from windrow.comm.random import Stream, hash_ids, stream_key

__all__ = ["Interactions", "ItemLists", "carve_validation", "check_interactions", "item_lists_from_pairs"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ItemLists:
    """The items of each user: a compressed sparse row matrix without values.

    Attributes:
        indptr: [users + 1] int64; user u has the items ``items[indptr[u]:indptr[u + 1]]``.
        items: [n] int64 item ids, ascending for each user, none twice.
    """

    indptr: IntArray
    items: IntArray

    @property
    def num_users(self) -> int:
        """Rows of the matrix."""
        return len(self.indptr) - 1

    @cached_property
    def counts(self) -> IntArray:
        """[users] number of items of each user."""
        return np.diff(self.indptr)

    @cached_property
    def users(self) -> IntArray:
        """[n] the user of each entry of `items`."""
        return np.repeat(np.arange(self.num_users, dtype=np.int64), self.counts)

    def __len__(self) -> int:
        """Number of interactions."""
        return len(self.items)


@dataclass(frozen=True, slots=True)
class Interactions:
    """A data set of implicit feedback; check one with `check_interactions`.

    Attributes:
        num_users: users are 0 .. num_users - 1, in all splits.
        num_items: items are 0 .. num_items - 1.
        train: what a model learns from.
        validation: to choose settings by; may be empty.
        test: to report; may be empty.
    """

    num_users: int
    num_items: int
    train: ItemLists
    validation: ItemLists
    test: ItemLists

    def splits(self) -> dict[str, ItemLists]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def item_counts(self) -> IntArray:
        """[num_items] how many users took each item in the training split."""
        return np.bincount(self.train.items, minlength=self.num_items).astype(np.int64)

    def fingerprint(self) -> str:
        """SHA-256 of all splits, in hexadecimal: equal where two runs see the same data."""
        digest = hashlib.sha256(f"{self.num_users} {self.num_items}".encode())
        for name, lists in self.splits().items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(lists.indptr, dtype="<i8").data)
            digest.update(np.ascontiguousarray(lists.items, dtype="<i8").data)
        return digest.hexdigest()


def item_lists_from_pairs(users: IntArray, items: IntArray, num_users: int) -> ItemLists:
    """Sort pairs into lists.

    Args:
        users: [n] in [0, num_users), in any order.
        items: [n].
        num_users: rows of the result.

    Returns:
        Every pair, by user and then by item; pairs that occur twice still do. Cost: one sort.
    """
    order = np.lexsort((items, users))
    indptr = np.zeros(num_users + 1, dtype=np.int64)
    np.cumsum(np.bincount(users, minlength=num_users), out=indptr[1:])
    return ItemLists(indptr, items[order])


def carve_validation(train: ItemLists, fraction: float, *, seed: int) -> tuple[ItemLists, ItemLists]:
    """Move a share of each user's training items to a validation split.

    Of n items a user gives up ``floor(fraction * n)``, those with the smallest hash of (seed, user, item): the
    choice depends on nothing else.

    Args:
        train: items to choose from.
        fraction: in [0, 1).
        seed: of the choice.

    Returns:
        What is left to train on, and the validation split, empty where `fraction` is 0.

    Raises:
        RecipeError: the fraction is out of range.
    """
    if not 0 <= fraction < 1:
        raise RecipeError(f"validation_fraction = {fraction}: expected at least 0 and less than 1")
    users = train.users
    user_keys = hash_ids(stream_key(seed, Stream.SPLIT), users)
    keys = hash_ids(0, user_keys ^ train.items.astype(np.uint64))
    order = np.lexsort((keys, users))
    # Sorted by user, entry i is the (i - indptr[user])-th smallest of its user.
    chosen = np.empty(len(train), dtype=bool)
    chosen[order] = (
        np.arange(len(train)) - train.indptr[users] < (train.counts * fraction).astype(np.int64)[users]
    )
    kept, taken = (
        item_lists_from_pairs(users[mask], train.items[mask], train.num_users) for mask in (~chosen, chosen)
    )
    return kept, taken


def check_interactions(interactions: Interactions, source: str) -> None:
    """Refuse interactions that break a law.

    Args:
        interactions: to check.
        source: where they come from, to be named in errors.

    Raises:
        DataError: offsets that do not start at 0, go down or do not end at the number of items; another number of
            users in one split; an item out of range, not in ascending order or twice for a user; an item in two
            splits of a user; nothing to train on. The message names split and user.
    """
    for split, lists in interactions.splits().items():
        place = f"{source}, {split}"
        _check_offsets(place, lists, interactions.num_users)
        _check_items(place, lists, interactions.num_items)
    if len(interactions.train) == 0:
        raise DataError(f"{source}: the training split is empty; give at least one user an item")
    _check_disjoint(source, interactions)


def _check_offsets(place: str, lists: ItemLists, num_users: int) -> None:
    indptr = lists.indptr
    if indptr.ndim != 1 or lists.items.ndim != 1:
        raise DataError(
            f"{place}: offsets and items have shapes {indptr.shape} and {lists.items.shape}; need 1-D"
        )
    if len(indptr) != num_users + 1:
        raise DataError(
            f"{place}: {len(indptr)} offsets for {num_users} users; need one more than there are users"
        )
    if indptr[0] != 0:
        raise DataError(f"{place}: offsets start at {indptr[0]}; start them at 0")
    down = np.flatnonzero(np.diff(indptr) < 0)
    if len(down):
        user = int(down[0])
        raise DataError(
            f"{place}, user {user}: offsets go down, from {indptr[user]} to {indptr[user + 1]}; they count the "
            "items of all users before, so write them again"
        )
    if indptr[-1] != len(lists.items):
        raise DataError(f"{place}: offsets end at {indptr[-1]}, but there are {len(lists.items)} items")


def _check_items(place: str, lists: ItemLists, num_items: int) -> None:
    outside = np.flatnonzero((lists.items < 0) | (lists.items >= num_items))
    if len(outside):
        at = int(outside[0])
        raise DataError(
            f"{place}, user {lists.users[at]}: item {lists.items[at]} is not in 0 .. {num_items - 1}; number items "
            "from 0"
        )
    wrong = np.flatnonzero((np.diff(lists.items) <= 0) & (np.diff(lists.users) == 0))
    if len(wrong):
        at = int(wrong[0])
        user, first, second = lists.users[at], lists.items[at], lists.items[at + 1]
        if first == second:
            raise DataError(f"{place}, user {user}: item {first} occurs twice; keep one")
        raise DataError(
            f"{place}, user {user}: item {second} comes after item {first}; sort each user's items"
        )


def _check_disjoint(source: str, interactions: Interactions) -> None:
    splits = list(interactions.splits().items())
    pairs = {name: lists.users * interactions.num_items + lists.items for name, lists in splits}
    for position, (first, _) in enumerate(splits):
        for second, _ in splits[position + 1 :]:
            both = np.intersect1d(pairs[first], pairs[second], assume_unique=True)
            if len(both):
                user, item = divmod(int(both[0]), interactions.num_items)
                raise DataError(
                    f"{source}, user {user}: item {item} is in {first} and in {second} ({len(both)} such pairs); "
                    "keep it in one"
                )
