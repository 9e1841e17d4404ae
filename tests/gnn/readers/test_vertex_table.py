"""The vertex file beside an edge list."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.gnn.readers.edge_list import read_vertex_ids, read_vertex_table
from windrow.gnn.readers.options import EdgeListOptions

pytest.importorskip("pyarrow")


def options(folder: Path, text: str, **fields: Any) -> EdgeListOptions:
    (folder / "v.csv").write_text(text)
    return EdgeListOptions(vertex_file=str(folder / "v.csv"), **fields)


def test_rows_are_sorted_by_id(tmp_path: Path) -> None:
    text = "id,x,y,class,part\n2,0.2,1,0,\n0,0.0,1,1,train\n1,0.1,1,,test\n"
    table = read_vertex_table(
        options(tmp_path, text, vertex_id_column="id", label_columns=("class",), split_column="part")
    )
    assert table.num_vertices == 3
    assert table.names is None
    assert np.allclose(table.features, [[0.0, 1], [0.1, 1], [0.2, 1]])
    assert table.features.dtype == np.float32
    assert np.array_equal(table.labels, [[1], [np.nan], [0]], equal_nan=True)
    assert (table.split.train_ids.tolist(), table.split.test_ids.tolist()) == ([0], [1])
    assert table.split.validation_ids.tolist() == []


def test_names_keep_the_order_of_the_file(tmp_path: Path) -> None:
    table = read_vertex_table(options(tmp_path, "id,x\nb,1\na,2\n", ids="names", vertex_id_column="id"))
    assert table.names.to_pylist() == ["b", "a"]
    assert table.features.tolist() == [[1], [2]]


def test_chosen_columns_only(tmp_path: Path) -> None:
    table = read_vertex_table(
        options(tmp_path, "x,y,z,p\n1,2,0,a\n4,5,1,b\n", feature_columns=("y",), label_columns=("z", "x"))
    )
    assert table.features.tolist() == [[2], [5]]
    assert table.labels.tolist() == [[0, 1], [1, 4]]
    assert table.split is None


@pytest.mark.parametrize("word", ["validation", "valid", "val"])
def test_three_words_for_validation(tmp_path: Path, word: str) -> None:
    table = read_vertex_table(options(tmp_path, f"x,part\n1,{word}\n", split_column="part"))
    assert table.split.validation_ids.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("id,x\n0,1\n0,2\n", {"vertex_id_column": "id"}, "row 2: vertex 0 is in row 1 already; keep one."),
        (
            "id,x\n0,1\n5,2\n",
            {"vertex_id_column": "id"},
            "row 2: vertex id 5 is not one of 0 to 1, though the file",
        ),
        ("id,x\n0,1\n,2\n", {"vertex_id_column": "id"}, "row 2: the vertex's id is empty; fill it in."),
        (
            "x,part\n1,train\n1,dev\n",
            {"split_column": "part"},
            "row 2: split 'dev' is unknown; use train, validation",
        ),
        ("x,y\n1,a\n", {}, "CSV conversion error to float: invalid value 'a'"),
        ("x\n1\n", {"label_columns": ("class",)}, "there is no column 'class'; the columns are ['x']"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_vertex_table(options(tmp_path, text, **fields))
    assert message in str(caught.value)
    assert "v.csv" in str(caught.value)


@pytest.mark.parametrize(("ids", "expected"), [("names", ["7", "3"]), ("integers", [7, 3]), ("rows", None)])
def test_ids_alone(tmp_path: Path, ids: Any, expected: list[Any] | None) -> None:
    chosen = options(tmp_path, "id,x\n7,oops\n3,2\n", ids=ids, vertex_id_column="id")
    found = read_vertex_ids(chosen)
    assert (None if found is None else found.to_pylist()) == expected
    assert read_vertex_ids(EdgeListOptions(ids=ids)) is None


def test_ids_that_repeat_are_refused(tmp_path: Path) -> None:
    chosen = options(tmp_path, "id,x\na,1\na,2\n", ids="names", vertex_id_column="id")
    with pytest.raises(DataError, match="row 2: vertex 'a' is in row 1 already"):
        read_vertex_ids(chosen)
