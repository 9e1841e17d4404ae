"""Options of the readers."""

from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions


def test_paths_are_relative_to_a_folder(tmp_path: Path) -> None:
    options = GraphOptions(path="g/edges.csv", edge_list=EdgeListOptions(vertex_file="v.csv")).resolved(
        tmp_path
    )
    assert options.path == str(tmp_path / "g" / "edges.csv")
    assert options.edge_list.vertex_file == str(tmp_path / "v.csv")


def test_absolute_paths_and_no_vertex_file_stay() -> None:
    options = GraphOptions(path="/data/x.npz").resolved(Path("/elsewhere"))
    assert options.path == "/data/x.npz"
    assert options.edge_list.vertex_file == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": ""}, "path of the graph is empty; name a file or folder."),
        ({"path": "x", "split": -1}, "split is -1 and first_vertex_id 0; use numbers from 0."),
    ],
)
def test_graph_options_out_of_range(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        GraphOptions(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ids": "strings"}, "ids is 'strings'; use 'rows', 'integers' or 'names'."),
        ({"order": "random"}, "order is 'random'; use 'first-appearance' or 'sorted'."),
        ({"delimiter": "::"}, "delimiter is '::' and skip_rows 0; use one character"),
        ({"ids": "names", "vertex_file": "v.csv"}, "ids is 'names' and there is a vertex_file, so its ids"),
        ({"label_columns": ("class",)}, "columns ['class'] belong to a vertex file; set vertex_file."),
    ],
)
def test_edge_list_options_that_contradict(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        EdgeListOptions(**fields)
    assert message in str(caught.value)
