"""Folders with a file for each type of vertices and edges."""

import math
from pathlib import Path

import pytest
import torch

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.readers.options import EdgeListOptions, GraphOptions
from windrow.gnn.readers.read import read_graph
from windrow.gnn.readers.typed_folder import columns_of_type
from windrow.gnn.vertex_data import SplitOptions

pa = pytest.importorskip("pyarrow")

PAPERS = {"id": ["p", "q", "r"], "year": [1.0, 2.0, 3.0], "field": [0, 1, 0], "use": ["train", "test", "validation"]}


def write(folder: Path, name: str, columns: dict[str, list[object]]) -> None:
    from pyarrow import parquet

    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "vertices/paper", PAPERS)
    write(tmp_path, "vertices/author", {"id": ["anna", "bert"], "age": [0.3, 0.7], "papers": [1.0, 2.0]})
    write(tmp_path, "edges/author__writes__paper", {"who": ["bert", "anna", "bert"], "what": ["p", "q", "r"]})
    (tmp_path / "edges" / "paper__cites__paper.csv").write_text("from,to\nq,p\nr,p\n")
    (tmp_path / "edges" / "README").write_text("no table")
    return tmp_path


NAMED = EdgeListOptions(ids="names", vertex_id_column="id", label_columns=("field",), split_column="use")


def options(folder, columns=NAMED, **others):
    return GraphOptions(path=str(folder), edge_list=columns, **others)


def test_named_vertices(folder):
    graph = read_graph(options(folder))
    assert graph.types.vertices == {"author": (2, 2), "paper": (3, 1)}
    assert [edge[1] for edge in graph.types.edges] == ["writes", "cites", "rev_writes"]
    assert torch.equal(graph.features, torch.tensor([[0.3, 1], [0.7, 2], [1, 0], [2, 0], [3, 0]]))
    assert graph.labels.tolist() == [-1, -1, 0, 1, 0]
    assert [ids.tolist() for ids in (graph.train_ids, graph.validation_ids, graph.test_ids)] == [[2], [4], [3]]
    lists = [graph.indices[a:b].tolist() for a, b in zip(graph.indptr, graph.indptr[1:], strict=False)]
    assert lists == [[3], [2, 4], [1, 3, 4], [0, 2], [1, 2]]
    assert graph.edge_type.tolist() == [2, 2, 2, 0, 1, 1, 0, 1, 0, 1]
    one_way = read_graph(options(folder, symmetrise=False))
    assert one_way.num_edges == 5


def test_each_type_is_made_standard_by_itself(folder):
    graph = read_graph(options(folder, standardise="standard"))
    assert graph.features[:2].tolist() == [[-1, -1], [1, 1]]
    assert graph.features[2:, 0].tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert not graph.features[2:, 1].any()
    assert graph.feature_scaling.shape == (2, 2, 2)
    assert graph.feature_scaling[1].tolist() == [[2, 0], [pytest.approx((2 / 3) ** 0.5), math.inf]]


def test_numbered_vertices_of_which_some_have_nothing(tmp_path):
    write(tmp_path, "vertices/item", {"price": [1.0, 2.0], "kind": [0, 1]})
    write(tmp_path, "edges/user__buys__item", {"user": [4, 0], "item": [1, 0]})
    split = SplitOptions(kind="fractions")
    graph = read_graph(options(tmp_path, EdgeListOptions(label_columns=("kind",)), random_split=split))
    assert graph.types.vertices == {"item": (2, 1), "user": (5, 0)}
    assert graph.labels.tolist() == [0, 1, -1, -1, -1, -1, -1]
    write(tmp_path, "edges/user__buys__item", {"user": [4, 0], "item": [1, 2]})
    with pytest.raises(DataError, match=r"user__buys__item.parquet, row 2: destination 2 .* type 'item' has 2"):
        read_graph(options(tmp_path, EdgeListOptions(label_columns=("kind",)), random_split=split))


def test_what_is_not_right_is_said(folder):
    write(folder, "edges/author__knows", {"a": ["anna"], "b": ["bert"]})
    with pytest.raises(DataError, match=r"author__knows.parquet: the name of a file of edges is the type of their"):
        read_graph(options(folder))
    (folder / "edges/author__knows.parquet").rename(folder / "edges/author__from__town.parquet")
    with pytest.raises(DataError, match="there is no file vertices/town with one of the endings"):
        read_graph(options(folder))
    (folder / "edges/author__from__town.parquet").rename(folder / "edges/author__writes__paper.csv")
    with pytest.raises(DataError, match=r"author__writes__paper.csv and .*\.parquet are of the same type"):
        read_graph(options(folder))
    (folder / "edges/author__writes__paper.csv").unlink()
    (folder / "edges/paper__cites__paper.csv").write_text("from,to\nq,x\n")
    with pytest.raises(DataError, match=r"paper__cites__paper.csv, column 'to', row 1: 'x' is not in the vertex file"):
        read_graph(options(folder))
    misspelt = EdgeListOptions(ids="names", vertex_id_column="id", label_columns=("feild",))
    with pytest.raises(DataError, match=r"no file has a column of graph.edge_list.label_columns = \('feild',\)"):
        read_graph(options(folder, misspelt))
    with pytest.raises(RecipeError, match=r'graph.edge_list.weight_column = \'w\' with graph.format = "typed"'):
        read_graph(options(folder, EdgeListOptions(weight_column="w")))
    for file in (folder / "edges").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"edges: there are no files of edges; write SOURCE__NAME__DESTINATION"):
        read_graph(options(folder, format="typed"))


def test_the_file_of_a_type(folder):
    found = columns_of_type(folder, NAMED, "author")
    assert found == EdgeListOptions(
        ids="names", vertex_id_column="id", vertex_file=str(folder / "vertices/author.parquet")
    )


def test_a_type_without_vertices(folder):
    write(folder, "vertices/venue", {"id": pa.array([], pa.string()), "size": pa.array([], pa.float32())})
    graph = read_graph(options(folder, standardise="standard"))
    assert graph.types.vertices["venue"] == (0, 1)
