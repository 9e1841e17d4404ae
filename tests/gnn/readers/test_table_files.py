"""CSV and Parquet files."""

import gzip

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.gnn.readers.table_files import TableFile, read_matrix

pa = pytest.importorskip("pyarrow")


def rows(path, columns, *, missing_allowed=False, share=None, **style):
    found = TableFile(path=path, **style).read(columns, missing_allowed=missing_allowed, share=share)
    return {name: values.to_pylist() for name, values in found.items()}


def test_tab_gzip_comments_and_no_header(tmp_path):
    path = tmp_path / "t.tsv.gz"
    path.write_bytes(gzip.compress(b"# comment\n# another\n1\t2\n3\t4\n"))
    assert rows(path, {"f0": "int64", "f1": "string"}, has_header=False, skip_rows=2) == {
        "f0": [1, 3],
        "f1": ["2", "4"],
    }


def test_parquet(tmp_path):
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    table = pa.table({"a": pa.array([1, 2], pa.int16()), "b": ["x", None]})
    parquet.write_table(table, path, row_group_size=1)
    assert TableFile(path=path).column_names() == ["a", "b"]
    assert rows(path, {"a": "int64"}) == {"a": [1, 2]}
    assert rows(path, {"b": "string"}, missing_allowed=True) == {"b": ["x", None]}
    with pytest.raises(DataError, match="row 2: column 'b' is empty; fill it in"):
        rows(path, {"b": "string"})
    with pytest.raises(DataError, match=r"t.parquet: no readable Parquet file, of columns .*int64.* .Failed to parse"):
        rows(path, {"b": "int64"}, missing_allowed=True)
    parquet.write_table(pa.table({"c": [[1.0], [2.0]]}), path)
    with pytest.raises(DataError, match=r"t.parquet: no readable Parquet file, of columns .*float32.* .*ist"):
        rows(path, {"c": "float32"})


def test_several_blocks_are_one_table(tmp_path):
    path, count = tmp_path / "t.csv", 300_000
    text = "a,b\n" + "".join(f"{number},{'b' * 60}\n" for number in range(count))
    path.write_text(text)
    assert TableFile(path=path).read({"a": "int64"})["a"].num_chunks > 1
    assert rows(path, {"a": "int64"})["a"] == list(range(count))
    path.write_text(text + "x,b\n")
    with pytest.raises(DataError, match=rf"Row #{count + 2}: .*invalid value 'x'"):
        rows(path, {"a": "int64"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "Row #3: Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,\n", "row 2: column 'b' is empty; fill it in."),
        ("", "no readable CSV file (Empty CSV file)"),
    ],
)
def test_broken_csv_is_refused_with_its_row(tmp_path, text, message):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        rows(path, {"a": "int64", "b": "int64"})
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"), [("José,b\n1,2\n", "line 1, byte 4"), ("a,b\n1,2\n1,José\n", "line 3, byte 6")]
)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_file_in_latin_1_is_refused_with_the_byte(tmp_path, text, place, name, kind):
    path, data = tmp_path / name, text.encode("latin-1")
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    with pytest.raises(DataError, match=rf"{name}, {place} is 0xe9, which is not UTF-8; save the file as UTF-8"):
        rows(path, {"a": "int64", "b": kind})


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(DataError, match=r"no readable .* file"):
        TableFile(path=tmp_path / name).column_names()


def test_a_matrix_without_header(tmp_path):
    path = tmp_path / "m.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n3,4\n5,6\n"))
    assert np.array_equal(read_matrix(path, "int64"), [[1, 2], [3, 4], [5, 6]])
    assert read_matrix(path, "float32").dtype == np.float32
    path.write_bytes(gzip.compress(b"1,\n3,nan\n"))
    assert np.isnan(read_matrix(path, "float64")).tolist() == [[False, True], [False, True]]
    path.write_bytes(gzip.compress(b"1,\n3,4\n"))
    with pytest.raises(DataError, match="row 1: column 'f1' is empty"):
        read_matrix(path, "int64")


@pytest.mark.parametrize("shares", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_shares_are_all_rows_in_order(tmp_path, form, shares):
    from pyarrow import csv, parquet

    path = tmp_path / f"t.{form}"
    columns = {"a": np.arange(25) ** 4, "b": [f"<{'x' * (row % 5)}>" for row in range(25)]}
    if form == "parquet":
        parquet.write_table(pa.table(columns), path, row_group_size=4)
    else:
        delimiter = "\t" if form == "tsv" else ","
        with path.open("wb") as file:
            file.write(b"a comment\n" if form == "tsv" else b"")
            csv.write_csv(pa.table(columns), file, csv.WriteOptions(delimiter=delimiter))
    table, kinds = TableFile(path=path, skip_rows=int(form == "tsv")), {"b": "string", "a": "int64"}
    found = [table.read(kinds, share=(number, shares)) for number in range(shares)]
    for name, values in columns.items():
        assert [value for share in found for value in share[name].to_pylist()] == list(values)


def test_places_of_shares(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "1\n" * 10 + "\n7\nx\n")
    with pytest.raises(DataError, match="CSV conversion error to int64"):
        rows(path, {"a": "int64"}, share=(1, 2))
    table = TableFile(path=path)
    assert table.place(3) == f"{path}, row 4"
    assert table.place(3, (1, 2)) == f"{path}, row 4 behind byte 14"
