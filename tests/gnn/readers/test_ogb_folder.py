"""OGB folders, made as the benchmark lays them out."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.gnn.build import edges_of
from windrow.gnn.readers.ogb_folder import read_ogb_folder
from windrow.gnn.readers.options import GraphOptions
from windrow.gnn.synthetic import community_graph, typed_community_graph

pytest.importorskip("pyarrow")


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(",".join(map(repr, row)) + "\n" for row in np.atleast_2d(rows.T).T.tolist())
    path.write_bytes(gzip.compress(lines.encode()))


def make(folder, graph, *, binary=False):
    destinations = np.repeat(np.arange(graph.num_vertices), graph.indptr.diff().numpy())
    edges = np.stack([graph.indices.numpy().astype(np.int64), destinations], axis=1)
    edges = edges[edges[:, 0] < edges[:, 1]]
    raw = folder / "raw"
    raw.mkdir(parents=True)
    if binary:
        np.savez(
            raw / "data.npz",
            edge_index=edges.T,
            num_nodes_list=np.array([graph.num_vertices]),
            num_edges_list=np.array([len(edges)]),
            node_feat=graph.features.numpy(),
            node_year=np.zeros(graph.num_vertices),
            **({} if graph.edge_attr is None else {"edge_feat": edges}),
        )
        np.savez(raw / "node-label.npz", node_label=graph.labels.numpy()[:, None].astype(np.float32))
    else:
        write(raw / "edge.csv.gz", edges)
        if graph.edge_attr is not None:
            write(raw / "edge-feat.csv.gz", edges)
        write(raw / "num-node-list.csv.gz", np.array([graph.num_vertices]))
        write(raw / "node-feat.csv.gz", graph.features.numpy())
        write(raw / "node-label.csv.gz", graph.labels.numpy())
    for name, ids in (("train", graph.train_ids), ("valid", graph.validation_ids), ("test", graph.test_ids)):
        write(folder / "split" / "time" / f"{name}.csv.gz", ids.numpy())


@pytest.fixture
def graph():
    return community_graph(40, 3, seed=8)


@pytest.mark.parametrize("binary", [False, True])
def test_the_same_graph_comes_out(tmp_path, graph, binary):
    ends = torch.stack(edges_of(graph.indptr, graph.indices), 1)
    graph = replace(graph, edge_attr=ends.sort(1).values.float())
    make(tmp_path, graph, binary=binary)
    assert read_ogb_folder(GraphOptions(path=str(tmp_path))).fingerprint() == graph.fingerprint()


def test_several_labels_per_vertex(tmp_path):
    graph = community_graph(40, 3, seed=8, task="multi-label")
    make(tmp_path, graph)
    assert read_ogb_folder(GraphOptions(path=str(tmp_path))).fingerprint() == graph.fingerprint()


def test_plain_csv_splits_and_choice_of_split(tmp_path, graph):
    make(tmp_path, graph)
    (tmp_path / "split" / "sales").mkdir()
    for name, ids in (("train", "0\n"), ("valid", "1\n"), ("test", "2\n3\n")):
        (tmp_path / "split" / "sales" / f"{name}.csv").write_text(ids)
    chosen = read_ogb_folder(GraphOptions(path=str(tmp_path), split_name="sales"))
    assert (chosen.train_ids.tolist(), chosen.test_ids.tolist()) == ([0], [2, 3])
    with pytest.raises(DataError, match=r"there are several splits, \['sales', 'time'\]; choose one as"):
        read_ogb_folder(GraphOptions(path=str(tmp_path)))
    with pytest.raises(DataError, match=r"there is no split 'random' among \['sales', 'time'\]"):
        read_ogb_folder(GraphOptions(path=str(tmp_path), split_name="random"))


def test_broken_folders_are_refused(tmp_path, graph):
    with pytest.raises(DataError, match=r"edge.csv.gz: no such file; is this the unpacked folder of an OGB"):
        read_ogb_folder(GraphOptions(path=str(tmp_path)))
    make(tmp_path, graph)
    options = GraphOptions(path=str(tmp_path))
    (tmp_path / "split" / "time" / "test.csv.gz").unlink()
    with pytest.raises(DataError, match=r"test.csv.gz: no such file; .* split_dict.pt is a pickle"):
        read_ogb_folder(options)
    write(tmp_path / "raw" / "num-node-list.csv.gz", np.array([20, 20]))
    with pytest.raises(DataError, match="2 graphs; windrow reads data sets of one graph"):
        read_ogb_folder(options)
    write(tmp_path / "raw" / "num-node-list.csv.gz", np.array([40]))
    write(tmp_path / "split" / "time" / "test.csv.gz", graph.test_ids.numpy())
    write(tmp_path / "raw" / "edge.csv.gz", np.array([[0, 1], [40, 2]]))
    with pytest.raises(DataError, match=r"edge.csv.gz, edge 2: source 40 is not a vertex"):
        read_ogb_folder(options)
    write(tmp_path / "raw" / "edge.csv.gz", np.array([[0, 1, 2]]))
    with pytest.raises(DataError, match="3 columns; an edge is source,destination"):
        read_ogb_folder(options)


def test_broken_binary_folders_are_refused(tmp_path):
    (tmp_path / "raw").mkdir()
    options = GraphOptions(path=str(tmp_path))
    np.savez(tmp_path / "raw" / "data.npz", edge_index=np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(DataError, match="there is no array 'num_nodes_list' among"):
        read_ogb_folder(options)
    np.savez(tmp_path / "raw" / "data.npz", edge_index=np.zeros((3, 1)), num_nodes_list=np.array([1]))
    with pytest.raises(DataError, match=r"edge_index has shape \(3, 1\); it must be \[2, E\]"):
        read_ogb_folder(options)


def test_types_of_vertices_and_edges(tmp_path):
    graph = typed_community_graph(40, 3, seed=8)
    names = {name: graph.types.range_of(name) for name in graph.types.vertices}
    text = ",".join(names) + "\n" + ",".join(str(last - first) for first, last in names.values()) + "\n"
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "num-node-dict.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name, (first, last) in names.items():
        if columns := graph.types.vertices[name].columns:
            write(tmp_path / "raw/node-feat" / name / "node-feat.csv.gz", graph.features[first:last, :columns].numpy())
    first, last = names["paper"]
    write(tmp_path / "raw/node-label/paper/node-label.csv.gz", graph.labels[first:last].numpy())
    for name, ids in (("train", graph.train_ids), ("valid", graph.validation_ids), ("test", graph.test_ids)):
        write(tmp_path / "split/time/paper" / f"{name}.csv.gz", ids.numpy() - first)
    sources, destinations = edges_of(graph.indptr, graph.indices)
    for number, (edge, ends) in enumerate(zip(graph.types.edges, graph.types.ends, strict=True)):
        chosen = graph.edge_type == number
        rows = torch.stack([sources[chosen], destinations[chosen]], 1) - graph.types.offsets[list(ends)]
        write(tmp_path / "raw/relations" / "___".join(edge) / "edge.csv.gz", rows.numpy())
    found = read_ogb_folder(GraphOptions(path=str(tmp_path), symmetrise=False))
    assert found.types.vertices == graph.types.vertices
    assert sorted(found.types.edges) == sorted(graph.types.edges)
    assert torch.equal(found.indptr, graph.indptr)
    torch.testing.assert_close(found.features, graph.features)
    for name in ("labels", "train_ids", "validation_ids", "test_ids"):
        assert torch.equal(getattr(found, name), getattr(graph, name))
    (tmp_path / "raw/relations/author_writes").mkdir()
    with pytest.raises(DataError, match="author_writes: expected a name such as author___writes___paper"):
        read_ogb_folder(GraphOptions(path=str(tmp_path)))
