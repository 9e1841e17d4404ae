import gzip

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.recsys.batches.interactions import read_interactions

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
        ({"train_items": np.array([4, 4, 0])}, "user 0: item 4 occurs twice"),
        ({"train_indptr": np.array([0, 2, 1, 3])}, "user 1: offset 1 comes after 2"),
        ({"train_indptr": np.array([0, 2, 3])}, "test: 4 offsets for 2 users"),
        ({"test_items": np.array([0, 2])}, "in train and in test"),
        ({"train_items": np.array([-4, 1, 0])}, "item -4 is not in"),
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
        ("user,item\na,1\n", "column 'user' has type string"),
        ("user,item\n0,1\n0,\n", "row 2: column 'item' is empty"),
        ("user,item\n0,1\n-1,3\n", "row 2: column 'user' is -1"),
        ("user,item\n0,1\n0,1\n", "user 0: item 1 occurs twice"),
        ("user,item\n0,1\n987654321,3\n", "column 'user' has the number 987654321 among 2 interactions"),
        ("user,item\n0,987654321\n", "column 'item' has the number 987654321"),
        ("user,item\n0,1,7\n", "no readable table"),
        ("", "no readable table"),
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
