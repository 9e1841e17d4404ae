"""A graph with types from its folder of files to predictions: every command, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.gnn import ModelOptions, build_model
from windrow.gnn.build import edges_of
from windrow.gnn.graph import Graph
from windrow.gnn.synthetic import community_graph, typed_community_graph
from windrow.launch.cli import main

parquet = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")


def write_folder(graph: Graph, folder: Path, *, without: str = "") -> Path:
    """The files of a planted graph; papers are known by names, as are all others."""
    assert graph.types is not None
    assert graph.features is not None
    assert graph.labels is not None
    assert graph.edge_type is not None
    for inside in ("vertices", "edges"):
        (folder / inside).mkdir(parents=True)
    names = {name: [f"{name} {v}" for v in range(one.number)] for name, one in graph.types.vertices.items()}
    for name, one in graph.types.vertices.items():
        first, last = graph.types.range_of(name)
        columns: dict[str, Any] = {"id": names[name]}
        columns |= {f"f{column}": graph.features[first:last, column].numpy() for column in range(one.columns)}
        if name == "paper":
            words = np.full(one.number, "train", object)
            words[graph.validation_ids.numpy() - first] = "validation"
            words[graph.test_ids.numpy() - first] = "test"
            columns |= {"label": graph.labels[first:last].numpy(), "split": words}
        parquet.write_table(pa.table(columns), folder / "vertices" / f"{name}.parquet")
    sources, destinations = edges_of(graph.indptr, graph.indices)
    for number, (edge, ends) in enumerate(zip(graph.types.edges, graph.types.ends, strict=True)):
        if edge[1].startswith("rev_") or edge[1] == without:
            continue
        chosen = graph.edge_type == number
        offsets = graph.types.offsets[list(ends)]
        columns = {
            "from": [names[edge[0]][v] for v in (sources[chosen] - offsets[0]).tolist()],
            "to": [names[edge[2]][v] for v in (destinations[chosen] - offsets[1]).tolist()],
        }
        parquet.write_table(pa.table(columns), folder / "edges" / f"{'__'.join(edge)}.parquet")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that `windrow init` wrote, its store, and a run."""
    folder = tmp_path_factory.mktemp("typed")
    write_folder(typed_community_graph(300, 3, seed=1, signal=1.0), folder / "data")
    recipe = folder / "r.toml"
    assert main(["init", "graph", str(folder / "data"), "--out", str(recipe)]) == 0
    assert main(["partition", str(recipe), "--parts", "1"]) == 0
    train(recipe, "run", "training.epochs=4", "model.hidden=16", "training.learning_rate=0.02")
    return folder


def changed(*sets: str) -> list[str]:
    return [word for one in sets for word in ("--set", one)]


def train(recipe: Path, run: str, *sets: str) -> None:
    assert main(["train", str(recipe), *changed(f"run.folder={recipe.parent / run}", *sets)]) == 0


def test_every_command(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 'kind = "rgcn"' in (trained / "r.toml").read_text()
    store = str(trained / "halves")
    assert main(["partition", str(trained / "r.toml"), "--parts", "2", "--out", store]) == 0
    assert main(["explain", str(trained / "r.toml"), *changed(f"store={store}")]) == 0
    assert "462 vertices in 2 parts" in capsys.readouterr().out
    out = trained / "papers.parquet"
    assert main(["predict", str(trained / "run"), "--out", str(out)]) == 0
    table = parquet.read_table(out)
    assert table["vertex"].to_pylist() == list(range(300))
    assert table["id"].to_pylist() == [f"paper {v}" for v in range(300)]
    known = json.loads(table.schema.metadata[b"windrow"])
    assert known["type"] == "paper"
    assert known["accuracy"]["test"] > 0.9
    assert (np.array(table["prediction"]) == np.arange(300) % 3).mean() > 0.9
    assert main(["predict", str(trained / "run"), "--split", "test", "--out", str(out)]) == 0
    assert parquet.read_table(out).num_rows == 75
    vectors = trained / "vectors.npy"
    assert main(["predict", str(trained / "run"), "--hidden", "--out", str(vectors)]) == 0
    assert np.load(vectors).shape == (462, 16)


def test_another_graph_is_scaled_alike_and_needs_no_labels(trained: Path, tmp_path: Path) -> None:
    run, out = str(trained / "run"), str(tmp_path / "p.parquet")
    graph = typed_community_graph(120, 3, seed=1, signal=1.0)
    other = write_folder(graph, tmp_path / "other")
    assert main(["predict", run, "--graph", str(other), "--out", out]) == 0
    table = parquet.read_table(out)
    assert table["id"].to_pylist() == [f"paper {v}" for v in range(120)]
    # Of the same edges, scaled by themselves, and scaled back.
    store = str(tmp_path / "store")
    sets = [f"graph.path={other}", f"store={store}"]
    assert main(["partition", str(trained / "r.toml"), "--parts", "1", *changed(*sets)]) == 0
    assert main(["predict", run, "--store", store, "--out", str(tmp_path / "q.parquet")]) == 0
    found = parquet.read_table(tmp_path / "q.parquet")
    assert found["prediction"].to_pylist() == table["prediction"].to_pylist()
    assert np.allclose(found["probability"], table["probability"], atol=1e-3)
    papers = other / "vertices" / "paper.parquet"
    parquet.write_table(parquet.read_table(papers).drop_columns(["label", "split"]), papers)
    sets = [f"graph.path={other}", f"store={tmp_path / 'bare'}", "graph.edge_list.label_columns=[]"]
    sets.append("graph.edge_list.split_column=")
    assert main(["partition", str(trained / "r.toml"), "--parts", "1", *changed(*sets)]) == 0
    assert main(["predict", run, "--store", str(tmp_path / "bare"), "--out", out]) == 0
    assert parquet.read_table(out)["prediction"].to_pylist() == table["prediction"].to_pylist()


def test_another_graph_has_the_same_types(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(trained / "run"), str(tmp_path / "p.parquet")
    fewer = write_folder(typed_community_graph(120, 3, seed=2), tmp_path / "fewer", without="mentions")
    assert main(["predict", run, "--graph", str(fewer), "--out", out]) == 0
    assert parquet.read_table(out).num_rows == 120
    file = fewer / "edges" / "paper__cites__paper.parquet"
    file.rename(file.with_name("paper__likes__paper.parquet"))
    assert main(["predict", run, "--graph", str(fewer), "--out", out]) == 2
    assert "the model has no weights for edges paper__likes__paper: it was trained on" in capsys.readouterr().err
    authors = fewer / "vertices" / "author.parquet"
    parquet.write_table(parquet.read_table(authors).drop_columns(["f0"]), authors)
    assert main(["predict", run, "--graph", str(fewer), "--out", out]) == 2
    assert "the graph has vertices of these types and columns of features: {'author': 7" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["rgcn", "rgat"])
def test_the_whole_graph_at_once(trained: Path, kind: str) -> None:
    whole = (f"model.kind={kind}", "full_graph.enabled=true", "sampler.fanouts=[15,10,5]", "training.batch_size=1024")
    train(trained / "r.toml", f"full_{kind}", *whole, "training.epochs=2")
    store = str(trained / f"halves_{kind}")
    assert main(["partition", str(trained / "r.toml"), "--parts", "2", "--out", store]) == 0
    assert main(["explain", str(trained / "r.toml"), *changed(*whole, f"store={store}")]) == 0


def test_layers_that_know_no_types_say_so(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(trained / "r.toml", "plain_sage", "model.kind=graphsage", "training.epochs=1")
    said = capsys.readouterr()
    assert 'the graph has types, which model.kind = "graphsage" does not tell apart' in said.out + said.err


def test_what_has_no_meaning_is_refused() -> None:
    options = ModelOptions(kind="rgcn")
    with pytest.raises(
        RecipeError, match=r'model.kind = "rgcn" has weights for each type .* and the graph has no types'
    ):
        build_model(options, in_features=3, out_features=2, seed=0, types=community_graph(20, 2, seed=0).types)
    with pytest.raises(RecipeError, match=r'model.residual = true with model.kind = "rgat"'):
        ModelOptions(kind="rgat", residual=True)
