import dataclasses
import gzip

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
    read_interactions,
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
        (lists([0, 2, 2, 3], [2, 6, 0]), r"user 0: item 6 is not in 0 \.\. 5"),
        (lists([0, 2, 2, 3], [2, 5, -1]), "user 2: item -1"),
        (lists([0, 2, 2, 3], [5, 5, 0]), "user 0: item 5 occurs twice"),
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


ARRAYS = {
    "train_indptr": np.array([0, 2, 3, 3], dtype=np.int32),
    "train_items": np.array([4, 1, 0], dtype=np.int32),
    "test_indptr": np.array([0, 0, 1, 2], dtype=np.int32),
    "test_items": np.array([5, 2], dtype=np.int32),
}


def save(path, **changes):
    arrays = {name: array for name, array in {**ARRAYS, **changes}.items() if array is not None}
    np.savez(path, **arrays)
    return path


def test_npz(tmp_path):
    found = read_interactions(save(tmp_path / "data.npz"), seed=0)
    assert (found.num_users, found.num_items) == (3, 6)
    assert found.train.values.tolist() == [1, 4, 0]
    assert found.test.rows.tolist() == [1, 2]
    assert found.test.values.tolist() == [5, 2]
    assert len(found.validation.values) == 0


def test_validation_is_carved(tmp_path):
    found = read_interactions(save(tmp_path / "data.npz"), validation_fraction=0.5, seed=0)
    assert found.train.lengths.tolist() == [1, 1, 0]
    assert found.validation.lengths.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_items": None}, "no array 'test_items'"),
        ({"train_items": np.array([0.5, 1, 0])}, "'train_items' has type float64"),
        ({"train_indptr": np.array([0, 2, 1, 3])}, "user 1: offset 1 comes after 2"),
        ({"train_indptr": np.array([0, 2, 3])}, "test: 4 offsets for 2 users"),
    ],
)
def test_bad_npz_is_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_interactions(save(tmp_path / "data.npz", **changes), seed=0)


def test_damaged_or_absent_files_are_refused(tmp_path):
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"not a zip file")
    with pytest.raises(DataError, match="no readable npz"):
        read_interactions(damaged, seed=0)
    whole = save(tmp_path / "whole.npz")
    whole.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"no readable npz|is damaged"):
        read_interactions(whole, seed=0)
    for name in ("absent.npz", "absent.csv", "absent.parquet"):
        with pytest.raises(DataError, match="no such file"):
            read_interactions(tmp_path / name, seed=0)


def write_table(path, text):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet

        pa.parquet.write_table(pa.csv.read_csv(pa.BufferReader(text.encode())), path)
    else:
        path.write_text(text.replace(",", "\t") if path.suffix == ".tsv" else text)
    return path


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "parquet"])
def test_tables(tmp_path, suffix):
    train = write_table(tmp_path / f"train.{suffix}", "time,user,item\n1,0,4\n2,1,0\n3,0,1\n")
    test = write_table(tmp_path / f"test.{suffix}", "user,item\n2,2\n1,5\n")
    found = read_interactions(train, test, seed=0)
    expected = read_interactions(save(tmp_path / "data.npz"), seed=0)
    assert found.fingerprint() == expected.fingerprint()
    assert len(read_interactions(train, seed=0).test.values) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,thing\n0,1\n", "no column 'item'"),
        ("user,item\na,1\n", "line 2: column 'user' has 'a', expected a row number"),
        ("user,item\n0,1\n0,\n", "line 3: column 'item' is empty"),
        ("user,item\n0,1\n-1,3\n", "line 3: column 'user' is -1"),
        ("user,item\n0,1\n0,1\n", "user 0: item 1 occurs twice"),
        ("user,item\n0,1\n987654321,3\n", "column 'user' has the number 987654321 among 2 interactions"),
        ("user,item\n0,987654321\n", "column 'item' has the number 987654321"),
        ("user,item\n0,1,7\n", "lines 2 to 2: .*Expected 2 columns, got 3"),
        ("", "is empty"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_interactions(write_table(tmp_path / "train.csv", text), seed=0)


def test_gowalla(shared_data):
    found = read_interactions(shared_data / "recsys" / "gowalla.npz", validation_fraction=0.1, seed=0)
    assert (found.num_users, found.num_items, len(found.test.values)) == (29_858, 40_981, 217_242)
    assert len(found.train.values) + len(found.validation.values) == 810_128
    assert found.train.lengths.min() >= 8
