import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.recsys.batches.interactions import (
    Interactions,
    carve_validation,
    check_interactions,
    item_lists_from_pairs,
)
from windrow.recsys.batches.jagged import Jagged

pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1)


def lists_of_pairs(found, num_users=10):
    users, items = np.array(sorted(found), dtype=np.int64).reshape(-1, 2).T
    return item_lists_from_pairs(users, items, num_users)


def make(train, validation=(), test=()):
    return Interactions(3, 6, *(lists_of_pairs(found, 3) for found in (train, validation, test)))


GOOD = make({(0, 2), (0, 5), (2, 0)}, {(0, 1)}, {(1, 4)})


@given(pairs)
def test_lists_hold_every_pair_in_order(found):
    lists = lists_of_pairs(found)
    assert list(zip(lists.rows.tolist(), lists.values.tolist(), strict=True)) == sorted(found)
    assert lists.lengths.sum() == len(lists.values) == len(found)
    assert len(lists) == 10


@given(pairs, st.floats(0, 0.99), st.integers(0, 5))
def test_carving_moves_a_share_of_each_user(found, fraction, seed):
    train = lists_of_pairs(found)
    kept, taken = carve_validation(train, fraction, seed=seed)
    assert (taken.lengths == np.floor(train.lengths * fraction)).all()
    both = [set(zip(part.rows.tolist(), part.values.tolist(), strict=True)) for part in (kept, taken)]
    assert both[0] | both[1] == found
    assert not both[0] & both[1]
    again = carve_validation(train, fraction, seed=seed)[1]
    assert (again.values == taken.values).all()


def test_another_seed_carves_other_items():
    train = lists_of_pairs({(user, item) for user in range(10) for item in range(30)})
    first, second = (carve_validation(train, 0.5, seed=seed)[1] for seed in (0, 1))
    assert not np.array_equal(first.values, second.values)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(RecipeError, match="validation_fraction"):
        carve_validation(GOOD.train, fraction, seed=0)


def test_good_interactions_pass():
    check_interactions(GOOD, "here")
    assert GOOD.item_counts().tolist() == [1, 0, 1, 0, 0, 1]


def lists(indptr, items):
    return Jagged(np.array(items, dtype=np.int64), np.array(indptr, dtype=np.int64))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lists([1, 2, 2, 3], [2, 5, 0]), "here, train: offsets start at 1"),
        (lists([0, 2, 1, 3], [2, 5, 0]), "here, train, user 1: offset 1 comes after 2"),
        (lists([0, 2, 2, 4], [2, 5, 0]), "offsets end at 4, but there are 3"),
        (lists([0, 2, 3], [2, 5, 0]), "3 offsets for 3 users"),
        (lists([0, 2, 2, 3], [2, 6, 0]), r"user 0: item 6 is not in 0 \.\. 5"),
        (lists([0, 2, 2, 3], [2, 5, -1]), "user 2: item -1"),
        (lists([0, 2, 2, 3], [5, 5, 0]), "user 0: item 5 occurs twice"),
        (lists([0, 2, 2, 3], [5, 2, 0]), "user 0: item 2 comes after item 5"),
        (lists([0, 0, 0, 0], []), "training split is empty"),
        (lists([0, 2, 3, 4], [2, 5, 4, 0]), r"user 1: item 4 is in train and in test \(1 such"),
        (lists([0, 2, 2, 3], [1, 5, 0]), "user 0: item 1 is in train and in validation"),
    ],
)
def test_bad_interactions_are_refused_with_their_place(train, message):
    with pytest.raises(DataError, match=message):
        check_interactions(dataclasses.replace(GOOD, train=train), "here")


def test_the_fingerprint_is_that_of_the_data():
    other = make({(0, 2), (0, 5), (2, 1)}, {(0, 1)}, {(1, 4)})
    moved = make({(0, 2), (0, 5), (2, 0)}, {(1, 4)}, {(0, 1)})
    again = make({(0, 2), (0, 5), (2, 0)}, {(0, 1)}, {(1, 4)})
    assert GOOD.fingerprint() == again.fingerprint()
    assert len({GOOD.fingerprint(), other.fingerprint(), moved.fingerprint()}) == 3
