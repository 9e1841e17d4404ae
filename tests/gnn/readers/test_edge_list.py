"""Edge lists in CSV and Parquet, the vertex file beside them, and vertices known by names."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError
from windrow.gnn.build import edges_of
from windrow.gnn.readers.edge_list import _number_names, read_edge_list_and_names, read_vertex_ids, read_vertex_table
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.synthetic import community_graph

pa = pytest.importorskip("pyarrow")


def options(folder, text, name="edges.csv", **fields):
    (folder / name).write_text(text)
    return GraphOptions(path=str(folder / name), symmetrise=False, edge_list=EdgeListOptions(**fields))


def edge_set(graph):
    sources, destinations = edges_of(graph.indptr, graph.indices)
    return set(zip(sources.tolist(), destinations.tolist(), strict=True))


def test_first_two_columns_are_the_ends_and_weights_are_passed_over(tmp_path):
    graph, names = read_edge_list_and_names(options(tmp_path, "from,to,weight\n0,1,0.5\n3,1,heavy\n"))
    assert edge_set(graph) == {(0, 1), (3, 1)}
    assert names.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ids", ["rows", "names"])
def test_weights_and_features_of_edges(tmp_path, ids):
    text = "from,to,weight,age,km\n2,1,0.5,3,7\n0,1,2,4,8\n"
    columns = {"weight_column": "weight", "edge_feature_columns": ("km", "age"), "ids": ids}
    graph, names = read_edge_list_and_names(options(tmp_path, text, **columns))
    order = np.argsort(names[graph.indices.numpy()].astype(str))
    assert graph.edge_weight[order].tolist() == [2, 0.5]
    assert graph.edge_attr[order].tolist() == [[8, 4], [7, 3]]
    with pytest.raises(DataError, match="there is no column 'cost'"):
        read_edge_list_and_names(options(tmp_path, text, weight_column="cost"))


def test_a_tab_separated_file_with_comments(tmp_path):
    text = "# a graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n"
    graph, _ = read_edge_list_and_names(options(tmp_path, text, "edges.tsv", has_header=False, skip_rows=2))
    assert edge_set(graph) == {(0, 1), (1, 2)}


def test_names_are_numbered_and_kept(tmp_path):
    graph, names = read_edge_list_and_names(options(tmp_path, "s,d\nb,c\na,b\n", ids="names"))
    assert names.tolist() == ["b", "c", "a"]
    assert {(names[s], names[d]) for s, d in edge_set(graph)} == {("b", "c"), ("a", "b")}


def test_any_integers(tmp_path):
    chosen = options(tmp_path, "s,d\n900,-5\n7,900\n", ids="integers")
    graph, names = read_edge_list_and_names(chosen)
    assert names.tolist() == [900, -5, 7]
    assert edge_set(graph) == {(0, 1), (2, 0)}


@pytest.mark.parametrize("ids", ["rows", "names"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_whole_graph_with_vertex_file(tmp_path, ids, ending):
    from pyarrow import csv, parquet

    graph = community_graph(40, 3, seed=6)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    name = "v{}".format if ids == "names" else int
    part = np.full(40, "", dtype=object)
    for word, members in (("train", graph.train_ids), ("val", graph.validation_ids), ("test", graph.test_ids)):
        part[members.numpy()] = word
    edge_table = pa.table({"to": [name(d) for d in destinations.tolist()], "from": [name(s) for s in sources.tolist()]})
    vertex_table = pa.table(
        {"id": [name(v) for v in range(40)], "class": graph.labels.numpy(), "part": part}
        | {f"x{column}": graph.features[:, column].numpy() for column in range(graph.features.shape[1])}
    )
    write = csv.write_csv if ending == "csv" else parquet.write_table
    write(edge_table, tmp_path / f"edges.{ending}")
    write(vertex_table, tmp_path / f"vertices.{ending}")
    read, names = read_edge_list_and_names(
        GraphOptions(
            path=str(tmp_path / f"edges.{ending}"),
            symmetrise=False,
            edge_list=EdgeListOptions(
                ids=ids,
                source_column="from",
                destination_column="to",
                vertex_file=str(tmp_path / f"vertices.{ending}"),
                vertex_id_column="id",
                label_columns=("class",),
                split_column="part",
            ),
        )
    )
    assert read.fingerprint() == graph.fingerprint()
    assert names.tolist() == [name(v) for v in range(40)]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("s,d\n0,1\n2,-1\n", {}, "edges.csv, row 2: destination -1 is not a vertex; the graph has 3"),
        ("s,d\n0,1\n2,\n", {}, "edges.csv, row 2: column 'd' is empty"),
        ("s,d\n0,9000000000000\n", {}, 'not the numbers from 0 on, set graph.edge_list.ids = "integers"'),
        ("s,d\n0,1\nx,1\n", {}, "Row #3: CSV conversion error to int64: invalid value 'x'"),
        ("s d\n0 1\n", {}, "the only column is ['s d']; an edge needs two. Is the delimiter right?"),
        ("s,d\n0,1\n", {"destination_column": "s"}, "source and destination are both column 's'; name two"),
        ("s,d\n0,1\n", {"source_column": "from"}, "there is no column 'from'; the columns are ['s', 'd']"),
    ],
)
def test_broken_edges_are_refused(tmp_path, text, fields, message):
    with pytest.raises(DataError, match=re.escape(message)):
        read_edge_list_and_names(options(tmp_path, text, **fields))


def test_an_edge_to_a_vertex_that_the_vertex_file_lacks(tmp_path):
    (tmp_path / "v.csv").write_text("id,x\na,1\nb,2\n")
    fields = {"vertex_file": str(tmp_path / "v.csv"), "vertex_id_column": "id", "ids": "names"}
    with pytest.raises(DataError, match=r"edges.csv, column 'd', row 2: 'z' is not in the vertex file"):
        read_edge_list_and_names(options(tmp_path, "s,d\na,b\nb,z\n", **fields))
    (tmp_path / "v.csv").write_text("x\n1\n2\n")
    with pytest.raises(DataError, match=r"row 1: destination 2 is not a vertex; the graph has 2 vertices"):
        read_edge_list_and_names(options(tmp_path, "s,d\n0,2\n", vertex_file=str(tmp_path / "v.csv")))


def test_no_edges(tmp_path):
    for ids in ("rows", "names"):
        assert read_edge_list_and_names(options(tmp_path, "s,d\n", ids=ids))[0].num_edges == 0


EDGES = st.lists(st.tuples(st.text("abc", max_size=3), st.text("abc", max_size=3)), max_size=30)


@given(EDGES, st.integers(1, 7))
def test_numbering_equals_a_dictionary(edges, batch):
    starts = range(0, len(edges), batch)
    chunks = [edges[start : start + batch] for start in starts]
    sources, destinations = (
        pa.chunked_array([[edge[end] for edge in chunk] for chunk in chunks], pa.string()) for end in (0, 1)
    )
    names, source_numbers, destination_numbers = _number_names(sources, destinations)
    expected = list(dict.fromkeys(name for edge in edges for name in edge))
    assert names.to_pylist() == expected
    assert source_numbers.tolist() == [expected.index(edge[0]) for edge in edges]
    assert destination_numbers.tolist() == [expected.index(edge[1]) for edge in edges]


def vertex_options(folder, text, **fields):
    (folder / "v.csv").write_text(text)
    return EdgeListOptions(vertex_file=str(folder / "v.csv"), **fields)


def test_rows_are_sorted_by_id(tmp_path):
    text = "id,x,y,class,part\n2,0.2,1,0,\n0,0.0,1,1,train\n1,0.1,1,,test\n"
    columns = {"vertex_id_column": "id", "label_columns": ("class",), "split_column": "part"}
    table = read_vertex_table(vertex_options(tmp_path, text, **columns))
    assert (table.num_vertices, table.names) == (3, None)
    assert np.allclose(table.data["features"], [[0.0, 1], [0.1, 1], [0.2, 1]])
    assert table.data["features"].dtype == np.float32
    assert np.array_equal(table.data["labels"], [[1], [np.nan], [0]], equal_nan=True)
    assert (table.data["split"].train_ids.tolist(), table.data["split"].test_ids.tolist()) == ([0], [1])
    assert table.data["split"].validation_ids.tolist() == []


def test_chosen_columns_only(tmp_path):
    columns = {"feature_columns": ("y",), "label_columns": ("z", "x")}
    table = read_vertex_table(vertex_options(tmp_path, "x,y,z,p\n1,2,0,a\n4,5,1,b\n", **columns))
    assert table.data["features"].tolist() == [[2], [5]]
    assert table.data["labels"].tolist() == [[0, 1], [1, 4]]
    assert "split" not in table.data


def test_three_words_for_validation(tmp_path):
    text = "x,part\n1,validation\n1,valid\n1,val\n"
    table = read_vertex_table(vertex_options(tmp_path, text, split_column="part"))
    assert table.data["split"].validation_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("id,x\n0,1\n0,2\n", {"vertex_id_column": "id"}, "row 2: vertex 0 is in row 1 already; keep one."),
        ("id,x\n0,1\n5,2\n", {"vertex_id_column": "id"}, "row 2: vertex id 5 is not one of 0 to 1, though"),
        ("id,x\n0,1\n,2\n", {"vertex_id_column": "id"}, "row 2: the vertex's id is empty; fill it in."),
        ("x,part\n1,train\n1,dev\n", {"split_column": "part"}, "row 2: split 'dev' is unknown; use train"),
        ("x,y\n1,a\n", {}, "CSV conversion error to float: invalid value 'a'"),
        ("x\n1\n", {"label_columns": ("class",)}, "there is no column 'class'; the columns are ['x']"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, fields, message):
    with pytest.raises(DataError) as caught:
        read_vertex_table(vertex_options(tmp_path, text, **fields))
    assert message in str(caught.value)
    assert "v.csv" in str(caught.value)


@pytest.mark.parametrize(("ids", "expected"), [("names", ["7", "3"]), ("integers", [7, 3]), ("rows", None)])
def test_ids_alone(tmp_path, ids, expected):
    chosen = vertex_options(tmp_path, "id,x\n7,oops\n3,2\n", ids=ids, vertex_id_column="id")
    found = read_vertex_ids(chosen)
    assert (None if found is None else found.to_pylist()) == expected
    assert read_vertex_ids(EdgeListOptions(ids=ids)) is None
