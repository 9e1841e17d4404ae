"""Edge lists in CSV and Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.errors import DataError
from windrow.gnn.build import edges_of
from windrow.gnn.graph import Graph
from windrow.gnn.readers.edge_list import read_edge_list, read_edge_list_and_names
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.synthetic import community_graph

pa = pytest.importorskip("pyarrow")


def options(folder: Path, text: str, name: str = "edges.csv", **fields: Any) -> GraphOptions:
    (folder / name).write_text(text)
    return GraphOptions(path=str(folder / name), symmetrise=False, edge_list=EdgeListOptions(**fields))


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    sources, destinations = edges_of(graph.indptr, graph.indices)
    return set(zip(sources.tolist(), destinations.tolist(), strict=True))


def test_first_two_columns_are_the_ends_and_weights_are_passed_over(tmp_path: Path) -> None:
    graph, names = read_edge_list_and_names(options(tmp_path, "from,to,weight\n0,1,0.5\n3,1,heavy\n"))
    assert edge_set(graph) == {(0, 1), (3, 1)}
    assert names.tolist() == [0, 1, 2, 3]


def test_a_tab_separated_file_with_comments(tmp_path: Path) -> None:
    text = "# a graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n"
    graph = read_edge_list(options(tmp_path, text, "edges.tsv", has_header=False, skip_rows=2))
    assert edge_set(graph) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("order", "expected"), [("first-appearance", ["b", "c", "a"]), ("sorted", ["a", "b", "c"])]
)
def test_names_are_numbered_and_kept(tmp_path: Path, order: str, expected: list[str]) -> None:
    graph, names = read_edge_list_and_names(options(tmp_path, "s,d\nb,c\na,b\n", ids="names", order=order))
    assert names.tolist() == expected
    assert {(names[s], names[d]) for s, d in edge_set(graph)} == {("b", "c"), ("a", "b")}


def test_any_integers(tmp_path: Path) -> None:
    graph, names = read_edge_list_and_names(
        options(tmp_path, "s,d\n900,-5\n7,900\n", ids="integers", order="sorted")
    )
    assert names.tolist() == [-5, 7, 900]
    assert edge_set(graph) == {(2, 0), (1, 2)}


@pytest.mark.parametrize("ids", ["rows", "names"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_whole_graph_with_vertex_file(tmp_path: Path, ids: str, ending: str) -> None:
    from pyarrow import csv, parquet

    graph = community_graph(40, 3, seed=6)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    name = "v{}".format if ids == "names" else int
    part = np.full(40, "", dtype=object)
    for word, members in (
        ("train", graph.train_ids),
        ("val", graph.validation_ids),
        ("test", graph.test_ids),
    ):
        part[members.numpy()] = word
    edge_table = pa.table(
        {"to": [name(d) for d in destinations.tolist()], "from": [name(s) for s in sources.tolist()]}
    )
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
        (
            "s,d\n0,1\n2,-1\n",
            {},
            "edges.csv, row 2: destination -1 is not a vertex; the graph has 3 vertices",
        ),
        ("s,d\n0,1\n2,\n", {}, "edges.csv, row 2: column 'd' is empty"),
        ("s,d\n0,1\nx,1\n", {}, "Row #3: CSV conversion error to int64: invalid value 'x'"),
        ("s d\n0 1\n", {}, "the only column is ['s d']; an edge needs two. Is the delimiter right?"),
        (
            "s,d\n0,1\n",
            {"destination_column": "s"},
            "source and destination are both column 's'; name two columns.",
        ),
        ("s,d\n0,1\n", {"source_column": "from"}, "there is no column 'from'; the columns are ['s', 'd']"),
    ],
)
def test_broken_edges_are_refused(tmp_path: Path, text: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_edge_list(options(tmp_path, text, **fields))
    assert message in str(caught.value)


def test_an_edge_to_a_vertex_that_the_vertex_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("id,x\na,1\nb,2\n")
    fields = {"vertex_file": str(tmp_path / "v.csv"), "vertex_id_column": "id", "ids": "names"}
    with pytest.raises(DataError, match=r"edges.csv, column 'd', row 2: 'z' is not in the vertex file"):
        read_edge_list(options(tmp_path, "s,d\na,b\nb,z\n", **fields))
    (tmp_path / "v.csv").write_text("x\n1\n2\n")
    with pytest.raises(DataError, match=r"row 1: destination 2 is not a vertex; the graph has 2 vertices"):
        read_edge_list(options(tmp_path, "s,d\n0,2\n", vertex_file=str(tmp_path / "v.csv")))


def test_no_edges(tmp_path: Path) -> None:
    for ids in ("rows", "names"):
        assert read_edge_list(options(tmp_path, "s,d\n", ids=ids)).num_edges == 0
