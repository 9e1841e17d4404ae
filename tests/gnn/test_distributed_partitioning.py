"""windrow.gnn.distributed_partitioning: what several ranks write is what one process writes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.gnn.distributed_partitioning import check_job_on_ranks, partition_to_store_on_ranks
from windrow.gnn.partitioning import PartitionJob, partition_to_store
from windrow.gnn.readers import EdgeListOptions, GraphOptions
from windrow.gnn.vertex_data import SplitOptions
from windrow.partition import PartitionOptions, PartitionStore

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")

NUM_VERTICES = 400
LISTED = PartitionOptions(num_parts=3, method="random", order="original")


def write_graph(folder: Path, form: str, *, shuffled: bool = False) -> EdgeListOptions:
    """A graph of communities, with all that files may hold, the later vertices without edges."""
    draw = np.random.default_rng(3)
    edges = {(int(a), int(b)) for a, b in draw.integers(0, NUM_VERTICES - 20, (3000, 2)) if a < b or a == b % 7}
    source, destination = np.array(sorted(edges)).T
    order = draw.permutation(len(source))
    tables = {
        "edges": {"from": source[order], "to": destination[order], "weight": draw.random(len(order)), "age": order % 9},
        "vertices": {
            "id": np.arange(NUM_VERTICES),
            "x": draw.normal(size=NUM_VERTICES),
            "y": draw.normal(2, 5, NUM_VERTICES),
            "class": draw.integers(0, 4, NUM_VERTICES),
            "split": draw.choice(["train", "validation", "test", ""], NUM_VERTICES),
        },
    }
    if shuffled:
        rows = draw.permutation(NUM_VERTICES)
        tables["vertices"] = {name: column[rows] for name, column in tables["vertices"].items()}
    for name, columns in tables.items():
        table = pa.table(columns)
        if form == "parquet":
            parquet.write_table(table, folder / f"{name}.parquet", row_group_size=150)
        else:
            csv.write_csv(table, folder / f"{name}.csv")
    return columns_of(folder, form)


def columns_of(folder: Path, form: str) -> EdgeListOptions:
    return EdgeListOptions(
        weight_column="weight",
        edge_feature_columns=("age",),
        vertex_file=str(folder / f"vertices.{form}"),
        vertex_id_column="id",
        label_columns=("class",),
        split_column="split",
    )


def job_of(folder: Path, name: str, graph: GraphOptions, options: PartitionOptions = LISTED) -> PartitionJob:
    return PartitionJob(store=folder / name, graph=graph, partition=options)


def assert_equal_stores(one: PartitionStore, other: PartitionStore) -> None:
    assert list(one.manifest.files) == list(other.manifest.files)
    for name, entry in one.manifest.files.items():
        assert entry == other.manifest.files[name], name
    assert one.manifest.quality == other.manifest.quality
    for field in ("task", "num_classes", "graph", "order"):
        assert one.metadata[field] == other.metadata[field]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_the_store_is_that_of_one_process(spmd, shared_tmp_path, monkeypatch, form):
    monkeypatch.setattr("windrow.gnn.distributed_partitioning.VERTICES_AT_ONCE", 30)
    for limit in ("CHUNK_BYTES", "VERTEX_CHUNK_BYTES"):
        monkeypatch.setattr(f"windrow.gnn.graph_piece.{limit}", 5000)

    def body(world):
        folder = shared_tmp_path / form
        if world.rank == 0:
            folder.mkdir()
            write_graph(folder, form, shuffled=form == "csv")
        world.barrier(stage="written")
        graph = GraphOptions(path=str(folder / f"edges.{form}"), edge_list=columns_of(folder, form), standardise="rows")
        quality = partition_to_store_on_ranks(job_of(folder, "ranks", graph), world)
        if world.rank == 0:
            assert quality == partition_to_store(job_of(folder, "one", graph))
            assert_equal_stores(PartitionStore.open(folder / "one"), PartitionStore.open(folder / "ranks"))
        world.barrier(stage="compared")

    spmd(body)


@pytest.mark.parametrize("self_loops", ["keep", "add", "remove"])
@pytest.mark.parametrize("symmetrise", [False, True])
def test_edges_alone(tmp_path, symmetrise, self_loops):
    write_graph(tmp_path, "csv")
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), symmetrise=symmetrise, self_loops=self_loops)
    partition_to_store(job_of(tmp_path, "one", graph))
    Loopback.run(3, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "ranks", graph), world))
    assert_equal_stores(PartitionStore.open(tmp_path / "one"), PartitionStore.open(tmp_path / "ranks"))


def test_more_parts_than_ranks_and_fewer(tmp_path):
    write_graph(tmp_path, "parquet")
    graph = GraphOptions(path=str(tmp_path / "edges.parquet"))
    for num_parts in (1, 2, 8):
        options = PartitionOptions(num_parts=num_parts, method="random", order="original")
        one, ranks = (job_of(tmp_path, f"{name}-{num_parts}", graph, options) for name in ("one", "ranks"))
        partition_to_store(one)
        Loopback.run(3, lambda world, job=ranks: partition_to_store_on_ranks(job, world))
        assert_equal_stores(PartitionStore.open(one.store), PartitionStore.open(ranks.store))


@pytest.mark.parametrize("size", [1, 5])
def test_hardly_any_vertices(tmp_path, size):
    (tmp_path / "edges.csv").write_text("from,to\n0,1\n1,2\n")
    graph = GraphOptions(path=str(tmp_path / "edges.csv"))
    one, ranks = (job_of(tmp_path, f"{name}-{size}", graph) for name in ("one", "ranks"))
    partition_to_store(one)
    Loopback.run(size, lambda world: partition_to_store_on_ranks(ranks, world))
    assert_equal_stores(PartitionStore.open(one.store), PartitionStore.open(ranks.store))
    (tmp_path / "edges.csv").write_text("from,to\n")
    with pytest.raises(DataError, match="0 vertices cannot be spread over 3 parts"):
        Loopback.run(size, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "none", graph), world))


def test_a_hub_and_more_ranks_than_a_part_has_training_vertices(tmp_path):
    edges = [(0, other) for other in range(1, NUM_VERTICES)] + [(other, other + 1) for other in range(1, 300)]
    (tmp_path / "edges.csv").write_text("from,to\n" + "".join(f"{one},{other}\n" for one, other in edges))
    rows = (f"{vertex % 3},{'train' if vertex % 40 == 0 else 'test'}\n" for vertex in range(NUM_VERTICES))
    (tmp_path / "vertices.csv").write_text("class,split\n" + "".join(rows))
    columns = EdgeListOptions(
        vertex_file=str(tmp_path / "vertices.csv"), label_columns=("class",), split_column="split"
    )
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns)
    options = PartitionOptions(num_parts=2, method="fennel", order="original")
    found = Loopback.run(8, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "s", graph, options), world))
    assert sum(found[0].part_sizes) == NUM_VERTICES
    assert min(found[0].part_sizes) > NUM_VERTICES / 4


@pytest.mark.parametrize(
    ("label", "split"),
    [
        ("class", SplitOptions(train_per_class=5, validation_per_class=7)),
        ("x", SplitOptions(kind="fractions", train_fraction=0.3)),
    ],
)
def test_random_splits_and_standard_features(tmp_path, label, split):
    columns = write_graph(tmp_path, "csv")
    columns = EdgeListOptions(
        vertex_file=columns.vertex_file, vertex_id_column="id", feature_columns=("y",), label_columns=(label,)
    )
    graph = GraphOptions(
        path=str(tmp_path / "edges.csv"), edge_list=columns, standardise="standard", random_split=split
    )
    partition_to_store(job_of(tmp_path, "one", graph))
    Loopback.run(3, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "ranks", graph), world))
    one, ranks = PartitionStore.open(tmp_path / "one"), PartitionStore.open(tmp_path / "ranks")
    for name in ("train_ids", "validation_ids", "test_ids", "indices", "labels"):
        assert np.array_equal(one.shared(name), ranks.shared(name))
    assert ranks.shared("feature_scaling") == pytest.approx(one.shared("feature_scaling"))
    for part in range(3):
        assert ranks.sharded("features", part) == pytest.approx(one.sharded("features", part), abs=1e-5)


def test_streaming_on_one_rank_is_that_of_one_process(tmp_path):
    columns = write_graph(tmp_path, "csv")
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns)
    options = PartitionOptions(num_parts=4, method="fennel", order="original")
    partition_to_store(job_of(tmp_path, "one", graph, options))
    partition_to_store_on_ranks(job_of(tmp_path, "ranks", graph, options), Loopback.single())
    assert_equal_stores(PartitionStore.open(tmp_path / "one"), PartitionStore.open(tmp_path / "ranks"))


def test_the_fingerprint_is_that_of_the_files_whatever_the_ranks(tmp_path):
    columns = write_graph(tmp_path, "csv")
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns)

    def fingerprint(name, size):
        Loopback.run(size, lambda world: partition_to_store_on_ranks(job_of(tmp_path, name, graph), world))
        return PartitionStore.open(tmp_path / name).metadata["fingerprint"]

    assert fingerprint("a", 1) == fingerprint("b", 3)
    before = fingerprint("c", 2)
    with (tmp_path / "edges.csv").open("a") as file:
        file.write("1,399,0.5,1\n")
    assert fingerprint("d", 2) != before


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vertices": [(3, "2,0.5,1,1,train")]}, DataError, "row 4 behind byte .* vertex 2 is in row 3 behind"),
        ({"vertices": [(350, "2,0.5,1,1,train")]}, DataError, "vertex 2 is in more than one row"),
        ({"vertices": [(3, "900,0.5,1,1,train")]}, DataError, "vertex id 900 is not one of 0 to 399"),
        ({"vertices": [(3, "3,0.5,nan,1,train")]}, DataError, "vertex 0: feature column 1 of vertex 3"),
        ({"vertices": [(3, "3,0.5,1,1.5,train")]}, DataError, "the label of vertex 3 is 1.5"),
        ({"edges": [(5, "3,400,1,1")]}, DataError, "row 5 behind byte .* destination 400 is not a vertex"),
        ({"edges": [(5, "3,7,inf,1")]}, DataError, "edge_weight of the edge 7, 3 is no finite number"),
        (
            {"edges": [(5, "3,3,1,1"), (6, "3,3,2,1")]},
            DataError,
            r"edge 3, 3 with \[1.0, 1.0\] and .* edge 3, 3 with \[2.0, 1.0\] join the same",
        ),
        ({"edges": [(5, "3,x,1,1")]}, DataError, "rows counted from byte 27 .*Row #5"),
    ],
)
def test_data_that_break_a_law_are_named(tmp_path, changes, error, message):
    columns = write_graph(tmp_path, "csv")
    for name, lines in changes.items():
        path = tmp_path / f"{name}.csv"
        text = path.read_text().splitlines()
        for place, line in lines:
            text[place if name == "edges" else place + 1] = line
        path.write_text("\n".join(text) + "\n")
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns, task="single-label")
    size = 2 if "more than one" in message else 1
    with pytest.raises(error, match=message):
        Loopback.run(size, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "store", graph), world))
    assert not (tmp_path / "store").exists()


def test_a_training_set_is_needed_where_there_are_labels(tmp_path):
    columns = write_graph(tmp_path, "csv")
    text = (tmp_path / "vertices.csv").read_text().replace('"train"', '"test"')
    (tmp_path / "vertices.csv").write_text(text)
    graph = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns)
    with pytest.raises(DataError, match="the training set is empty"):
        Loopback.run(2, lambda world: partition_to_store_on_ranks(job_of(tmp_path, "s", graph), world))


def test_what_needs_one_process_is_refused(tmp_path):
    columns = write_graph(tmp_path, "csv")
    edges = GraphOptions(path=str(tmp_path / "edges.csv"), edge_list=columns)
    for graph, options, message in (
        (edges, PartitionOptions(order="original"), '"metis"'),
        (edges, PartitionOptions(method="fennel"), 'the order "vip"'),
        (GraphOptions(path="graph.npz"), LISTED, "not npz"),
        (GraphOptions(path="edges.csv.gz"), LISTED, "unpack it"),
        (replace(edges, self_loops="add"), LISTED, "those of the added edges are unknown"),
        (GraphOptions(path="edges.csv", edge_list=EdgeListOptions(ids="names")), LISTED, "numbered from 0"),
    ):
        with pytest.raises(RecipeError, match=message):
            check_job_on_ranks(job_of(tmp_path, "store", graph, options), overwrite=False)
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="already exists"):
        check_job_on_ranks(job_of(tmp_path, "there", edges), overwrite=False)
