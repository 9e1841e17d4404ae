"""One door for every format, and its options."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import fitting, format_of, read_graph
from windrow.gnn.vertex_data import SplitOptions


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.npz", "npz"),
        ("a.csv", "edge-list"),
        ("a.v2.csv.gz", "edge-list"),
        ("a.parquet", "edge-list"),
        ("a.pq", "edge-list"),
        ("a.graph", "metis"),
        ("a.metis", "metis"),
        ("a.bin", "dgl"),
    ],
)
def test_the_ending_tells_the_format(path, expected):
    assert format_of(GraphOptions(path=path)) == expected
    assert format_of(GraphOptions(path=path, format="npz")) == "npz"


def test_a_folder_is_an_ogb_data_set_or_has_types(tmp_path):
    assert format_of(GraphOptions(path=str(tmp_path))) == "ogb"
    (tmp_path / "edges").mkdir()
    assert format_of(GraphOptions(path=str(tmp_path))) == "typed"


def test_unknown_endings_are_refused():
    with pytest.raises(RecipeError, match=r"the ending '.xlsx' does not tell the format; set format to"):
        format_of(GraphOptions(path="a.xlsx"))


@pytest.mark.parametrize("ending", [".pt", ".pkl"])
def test_a_pickle_is_never_opened(tmp_path, ending):
    path = tmp_path / f"data{ending}"
    torch.save({"edge_index": torch.zeros(2, 1)}, path)
    with pytest.raises(DataError, match=r"is a pickle, and loading one can run any code, so it is not"):
        read_graph(GraphOptions(path=str(path)))


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"nowhere.npz: no such file or folder; correct the path"):
        read_graph(GraphOptions(path="nowhere.npz"))


def test_a_link_keeps_its_ending_and_folders_may_have_dots(tmp_path):
    (tmp_path / "blob").write_text("s,d\n0,1\n1,2\n")
    (tmp_path / "g.csv").symlink_to("blob")
    assert read_graph(GraphOptions(path="g.csv").resolved(tmp_path)).num_edges == 4
    (tmp_path / "v1.0" / "edges").mkdir(parents=True)
    typed = GraphOptions(path="v1.0", edge_list=EdgeListOptions(label_columns=("field",)))
    assert format_of(typed.resolved(tmp_path)) == "typed"


def test_columns_are_for_tables(tmp_path):
    (tmp_path / "g.graph").write_text("2 1\n2\n1\n")
    chosen = GraphOptions(path=str(tmp_path / "g.graph"), edge_list=EdgeListOptions(weight_column="w"))
    with pytest.raises(RecipeError, match=r"graph.edge_list = .*'w'.* is for files in edge-list and typed, but"):
        read_graph(chosen)
    assert read_graph(fitting(chosen)).num_edges == 2


@pytest.mark.parametrize("options", [{"split": 1}, {"split_name": "random"}, {"first_vertex_id": 1}])
def test_options_of_other_formats_are_refused(tmp_path, options):
    (tmp_path / "g.csv").write_text("s,d\n0,1\n1,2\n")
    chosen = GraphOptions(path=str(tmp_path / "g.csv"), **options)
    with pytest.raises(RecipeError, match=f"graph.{next(iter(options))} = .* is for files in .*is in edge-list: leave"):
        read_graph(chosen)
    assert read_graph(fitting(chosen)).num_edges == 4


def test_each_format_reaches_its_reader(tmp_path):
    (tmp_path / "g.graph").write_text("3 2\n2\n1 3\n2\n")
    assert read_graph(GraphOptions(path=str(tmp_path / "g.graph"))).num_edges == 4
    (tmp_path / "g.csv").write_text("s,d\n0,1\n1,2\n")
    assert read_graph(GraphOptions(path=str(tmp_path / "g.csv"))).num_edges == 4


def test_features_are_standardised_and_every_error_names_the_file(tmp_path):
    path, split = str(tmp_path / "g.npz"), SplitOptions(kind="fractions")
    features = np.array([[1.0, 4.0], [3.0, 2.0], [2.0, 0.0]])
    arrays = {"edges": np.array([[0, 1]]), "y": np.array([0, 1, 0])}
    np.savez(path, x=features, **arrays)
    graph = read_graph(GraphOptions(path=path, standardise="standard", random_split=split))
    assert torch.allclose(graph.features.mean(0), torch.zeros(2), atol=1e-6)
    rows = read_graph(GraphOptions(path=path, standardise="rows", random_split=split))
    assert rows.features.sum(1).tolist() == pytest.approx([1, 1, 1])
    features[1, 1] = np.nan
    np.savez(path, x=features, **arrays)
    with pytest.raises(DataError, match=r"g.npz: feature column 1 of vertex 1 is nan"):
        read_graph(GraphOptions(path=path, standardise="standard", random_split=split))


def test_paths_are_relative_to_a_folder(tmp_path):
    edge_list = EdgeListOptions(vertex_file="v.csv")
    options = GraphOptions(path="g/edges.csv", edge_list=edge_list).resolved(tmp_path)
    assert options.path == str(tmp_path / "g" / "edges.csv")
    assert options.edge_list.vertex_file == str(tmp_path / "v.csv")


def test_options_that_cannot_be_used():
    with pytest.raises(RecipeError, match="ids is 'names' and there is a vertex_file"):
        EdgeListOptions(ids="names", vertex_file="v.csv")
    for given in ({"path": "a.csv"}, {"path": "edges", "format": "edge-list"}):
        with pytest.raises(RecipeError, match=r"columns \['class'\] belong to a vertex file; set vertex"):
            GraphOptions(**given, edge_list=EdgeListOptions(label_columns=("class",)))
