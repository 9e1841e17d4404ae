"""windrow.launch.commands.init: files of a user's own become recipes that train without an edit."""

import gzip
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.gnn.synthetic import community_graph
from windrow.launch import starter_log
from windrow.launch.cli import main

ROWS = 1200
SPLITS = ("train", "val", "test", "")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(*arguments: str) -> dict[str, Any]:
    """Write ``r.toml`` by ``windrow init`` and read it."""
    assert main(["init", *arguments, "--out", "r.toml", "--overwrite"]) == 0
    return tomllib.loads(Path("r.toml").read_text())


def trains(preparation: list[str]) -> None:
    """``r.toml`` trains as it is, but for the number of epochs."""
    if preparation:
        assert main([*preparation[:1], "r.toml", *preparation[1:]]) == 0
    assert main(["train", "r.toml", "--run-folder", "run", "--set", "training.epochs=2", "--set", "run.threads=1"]) == 0
    assert (Path("run") / "summary.json").is_file()


def write_edges_and_vertices() -> None:
    """People, known by name, in groups that know each other; text in tab-separated files."""
    graph = community_graph(200, 4, seed=0, num_features=4)
    assert graph.features is not None
    assert graph.labels is not None
    destinations = np.repeat(np.arange(200), np.diff(graph.indptr.numpy()))
    edges = zip(graph.indices.tolist(), destinations.tolist(), strict=True)
    lines = "".join(f"p{source}\tp{destination}\n" for source, destination in edges)
    Path("friends.edges").write_text(f"# who knows whom\nfrom\tto\n{lines}")
    rows = [
        f"{('town', 'village')[v % 2]}\tp{v}\t{a:.3f}\t{b:.3f}\t{c:.3f}\t{graph.labels[v]}\t{SPLITS[v % 4]}\n"
        for v, (a, b, c, _) in enumerate(graph.features.tolist())
    ]
    Path("people.tsv").write_text("home\tname\tage\tincome\tdebt\tgroup\tsplit\n" + "".join(rows))


def test_an_edge_list_with_a_vertex_table(capsys: pytest.CaptureFixture[str]) -> None:
    write_edges_and_vertices()
    recipe = init("graph", "friends.edges", "--vertices", "people.tsv")
    assert recipe["graph"]["edge_list"] == {
        "source_column": "from",
        "destination_column": "to",
        "ids": "names",
        "vertex_file": "people.tsv",
        "vertex_id_column": "name",
        "feature_columns": ["age", "income", "debt"],
        "label_columns": ["group"],
        "split_column": "split",
        "delimiter": "\t",
        "skip_rows": 1,
    }
    said = capsys.readouterr().out
    for words in ("200 vertices", "single-label, 4 classes", "50 train", "windrow partition r.toml --parts 2"):
        assert words in said
    trains(["partition", "--parts", "1"])


def test_an_npz_file_without_a_split() -> None:
    graph = community_graph(200, 2, seed=0, num_features=4)
    destinations = np.repeat(np.arange(200), np.diff(graph.indptr.numpy()))
    np.savez(
        "mine.npz",
        edges=np.stack([graph.indices.numpy(), destinations], axis=1) + 1,
        x=graph.features.numpy(),
        y=graph.labels.numpy(),
    )
    recipe = init("graph", "mine.npz")
    assert recipe["graph"]["random_split"]["kind"] == "fractions"
    assert recipe["graph"]["first_vertex_id"] == 1
    trains(["partition", "--parts", "1"])


def test_vertices_without_features_learn_rows() -> None:
    graph = community_graph(200, 2, seed=0, num_features=0)
    destinations = np.repeat(np.arange(200), np.diff(graph.indptr.numpy()))
    np.savez("mine.npz", edges=np.stack([graph.indices.numpy(), destinations], axis=1), y=graph.labels.numpy())
    recipe = init("graph", "mine.npz")
    assert (recipe["model"]["embedding"], recipe["tables"]["dim"]) == (True, 64)
    trains(["partition", "--parts", "1"])


def test_edges_alone_can_be_partitioned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("edges.csv").write_text("7;8\n8;9\n9;7\n")
    recipe = init("graph", "edges.csv")
    assert (
        recipe["graph"]["edge_list"] | {"delimiter": ";", "has_header": False, "ids": "integers"}
        == recipe["graph"]["edge_list"]
    )
    assert "it needs labels" in capsys.readouterr().out
    assert main(["partition", "r.toml", "--parts", "1"]) == 0


def clicks() -> dict[str, Any]:
    """Columns of a log: a click depends on item and price."""
    rng = np.random.default_rng(0)
    item, price = rng.integers(0, 40, ROWS), rng.lognormal(size=ROWS)
    return {
        "row_id": np.arange(ROWS),
        "shown_at": pa.array(np.arange(ROWS) * 1_000_000, pa.timestamp("us")),
        "session_id": [f"s{row // 4}" for row in range(ROWS)],
        "clicked": ((item % 3 == 0) ^ (price > 2)).astype(np.int64),
        "bought": (item % 7 == 0).astype(np.int64),
        "item_id": item,
        "price": price,
        "views": rng.integers(0, 5000, ROWS),
        "label.x": ["always"] * ROWS,
        "time": [f"w{value}" for value in rng.integers(0, 5, ROWS)],
        "history": [rng.integers(0, 40, size=row % 4).tolist() for row in range(ROWS)],
        "history_weights": [rng.random(size=row % 4).tolist() for row in range(ROWS)],
    }


def test_a_parquet_log(capsys: pytest.CaptureFixture[str]) -> None:
    parquet.write_table(pa.table(clicks()), "clicks.parquet")
    recipe = init("log", "clicks.parquet")
    log = recipe["log"]
    assert log["label"] == "clicked"
    assert (log["time"], log["session"], recipe["split"]["by"]) == ("shown_at", "session_id", "time")
    assert log["dense"] == ["price", "views"]
    assert log["features"] == {
        "item_id": {},
        "time_id": {"column": "time"},
        "history": {"multi_hot": True, "weights": "history_weights"},
    }
    said = capsys.readouterr().out
    for words in ("left out: row_id", "left out: bought (called as labels are", "left out: label.x (one value only"):
        assert words in said
    trains(["prepare"])
    several = init("log", "clicks.parquet", "--label", "clicked", "--label", "bought")
    assert several["log"]["label"] == ["clicked", "bought"]


def test_a_large_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a log with more values and samples than one wants to write."""
    for name, value in (("RARE_FROM_SAMPLES", ROWS), ("LARGE_LOG", 100)):
        monkeypatch.setattr(starter_log, name, value)
    parquet.write_table(pa.table(clicks()), "clicks.parquet")
    recipe = init("log", "clicks.parquet")
    assert recipe["log"]["features"]["item_id"] == {"min_count": 5}
    assert recipe["log"]["features"]["time_id"] == {"column": "time", "min_count": 5}
    assert recipe["tables"]["optimizer"] == "rowwise_adagrad"


def test_a_csv_log_with_lists_and_a_rating() -> None:
    rng = np.random.default_rng(0)
    genres = ["Drama", "Comedy", "Horror", "Western"]
    lists = ["|".join(rng.permutation(genres)[: 1 + row % 3]) for row in range(ROWS)]
    rows = [f"u{rng.integers(50)},{lists[row]},{1 + row % 5},{row % 2},x{row}\n" for row in range(ROWS)]
    for name, part in (("train", rows[:1000]), ("validation", rows[1000:1100]), ("test", rows[1100:])):
        with gzip.open(f"films-{name}.csv.gz", "wt") as file:
            file.write("user,genres,rating,new,note\n" + "".join(part))
    recipe = init("log", "films-*.csv.gz")
    assert (recipe["log"]["label"], recipe["log"]["label_kind"]) == ("rating", "real")
    assert recipe["log"]["features"] == {"user": {}, "genres": {"multi_hot": True}, "new": {}}
    assert recipe["split"] == {
        "by": "files",
        "validation_paths": ["films-validation.csv.gz"],
        "test_paths": ["films-test.csv.gz"],
    }
    trains(["prepare"])


def write_criteo() -> str:
    rng = np.random.default_rng(0)
    with Path("day.tsv").open("w") as file:
        for _ in range(ROWS):
            counts = rng.integers(0, 300, 13)
            words = rng.integers(0, 30, 26)
            fields = [int(counts[0] > 150), *counts, *(f"{word:08x}" for word in words)]
            fields[5] = ""
            file.write("\t".join(map(str, fields)) + "\n")
    return "day.tsv"


def write_libfm() -> str:
    rng = np.random.default_rng(0)
    lines = (f"{1 - 2 * (a % 2)} {a}:1 {20 + b}:1\n" for a, b in rng.integers(0, 20, (ROWS, 2)))
    Path("log.libfm").write_text("".join(lines))
    return "log.libfm"


def write_libfm_with_values() -> str:
    rng = np.random.default_rng(0)
    lines = (f"{a % 2} {a}:0.5" + f" {20 + b}:2" * (b % 2) + "\n" for a, b in rng.integers(0, 20, (ROWS, 2)))
    Path("log.svm").write_text("".join(lines))
    return "log.svm"


@pytest.mark.parametrize(
    ("write", "form", "features"),
    [
        (write_criteo, "criteo", {f"C{number}": {} for number in range(1, 27)}),
        (write_libfm, "libfm", {"field_0": {}, "field_1": {}}),
        (write_libfm_with_values, "libfm", {"ids": {"multi_hot": True, "weights": "values"}}),
    ],
)
def test_logs_without_a_header(write: Callable[[], str], form: str, features: dict[str, Any]) -> None:
    recipe = init("log", write())
    assert recipe["log"]["format"] == form
    assert recipe["log"]["features"] == features
    trains(["prepare"])


def test_pairs_of_users_and_items() -> None:
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([rng.integers(0, 60, 900), rng.integers(0, 40, 900)], axis=1), axis=0)
    Path("taken.csv").write_text("UserId,item\n" + "".join(f"{user},{item}\n" for user, item in pairs))
    recipe = init("log", "taken.csv")
    assert recipe["model"]["kind"] == "two_tower"
    assert recipe["interactions"]["user_column"] == "UserId"
    trains([])


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (
            "a,b,c\n0,1,x\n1,0,y\n",
            [],
            "several columns of 0 and 1. Name it by --label. Columns: a (whole numbers, 0 to 1",
        ),
        ("a,c\n3,x\n4,y\n", [], "no column has the name of a label or holds 0 and 1"),
        ("a,c\n0,x\n1,y\n", ["--label", "d"], "--label d: there is no such column"),
        ("a,c\n0,x\n1,y\n", ["--label", "c"], "a label is a number"),
        ("a;c\n0;x\n1;y\n", [], "is one column"),
        ("0,3\n1,4\n", [], "so it is no header"),
        ("click,c\n0,x\n,y\n", [], "empty in 1 of the 2 rows"),
        ("click,c\n0,x\n1,x\n", [], "no column could become a sparse feature"),
        ("user,item\n0,3\n0,3\n", [], "item 3 occurs twice in train"),
    ],
)
def test_logs_that_are_not_understood(
    capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], words: str
) -> None:
    Path("log.csv").write_text(text)
    assert main(["init", "log", "log.csv", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("log.toml").exists()


@pytest.mark.parametrize(
    ("vertices", "arguments", "words"),
    [
        ("id,x,kind\na,1,0\nb,2,1\n", [], "no column has the name of a label"),
        ("id,x,kind\na,1,0\nb,2,1\n", ["--label", "king"], "has no such column. Columns: id (text), x (whole numbers)"),
        ("id,x,y\na,1,red\nb,2,blue\n", [], "number the classes 0, 1, 2"),
        ("id,x,y\na,1,0\nc,2,1\n", [], "no column holds the vertices that the edges name, such as 'a'"),
        ("id,y\na,0\nb,1\n", [], "no column can be a feature"),
        ("id;x;y\na;1;0\nb;2;1\n", [], "differ in delimiter"),
    ],
)
def test_vertex_tables_that_are_not_understood(
    capsys: pytest.CaptureFixture[str], vertices: str, arguments: list[str], words: str
) -> None:
    Path("edges.csv").write_text("source,target\na,b\nb,a\n")
    Path("vertices.csv").write_text(vertices)
    assert main(["init", "graph", "edges.csv", "--vertices", "vertices.csv", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vertices", "arguments", "words"),
    [
        ("id;x;kind\na;1;0\nb;2;1\n", ["--label", "king"], "no file in data/vertices has such a column"),
        ("id;x;kind\na;1;red\nb;2;blue\n", ["--label", "kind"], "number the classes 0, 1, 2"),
        ("id;x;town\na;1;here\nb;2;there\n", [], "make numbers of it, or leave it out. Columns: id (text), x (whole"),
    ],
)
def test_files_of_types_that_are_not_understood(
    capsys: pytest.CaptureFixture[str], vertices: str, arguments: list[str], words: str
) -> None:
    for folder, name, text in (("vertices", "person", vertices), ("edges", "person__knows__person", "from;to\na;b\n")):
        Path("data", folder).mkdir(parents=True)
        Path("data", folder, f"{name}.csv").write_text(text)
    assert main(["init", "graph", "data", *arguments]) == 2
    assert words in capsys.readouterr().err
    Path("data/vertices/person.csv").write_text("id;x;class\na;1;0\nb;2;1\n")
    recipe = init("graph", "data")
    assert recipe["graph"]["edge_list"] == {
        "ids": "names", "vertex_id_column": "id", "label_columns": ["class"], "delimiter": ";"
    }  # fmt: skip
    assert main(["init", "graph", "data", "--vertices", "data/vertices/person.csv"]) == 2
    assert "vertices of each type are in data/vertices; leave it out" in capsys.readouterr().err


def test_nothing_is_replaced_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    write_libfm()
    assert main(["init", "log", "log.libfm"]) == 0
    assert "mpirun -n 2 windrow train log.toml" in capsys.readouterr().out
    Path("log.toml").write_text("mine")
    assert main(["init", "log", "log.libfm"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert Path("log.toml").read_text() == "mine"


def test_real_files(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = init("log", *(str(path) for path in (shared_data / "recsys" / "criteo_sample").glob("*.tsv.gz")))
    assert (recipe["log"]["format"], recipe["split"]["by"], recipe["log"]["dense_transform"]) == (
        "criteo",
        "files",
        "log1p",
    )
    assert init("graph", str(shared_data / "graphs" / "cora.npz"))["graph"]["standardise"] == "rows"
    assert "140 train" in capsys.readouterr().out
