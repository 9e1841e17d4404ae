"""windrow.launch.prediction: one row per vertex in the user's order, on any number of ranks; files; caches."""

import dataclasses
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from windrow.caching.cached_store import CachedStore
from windrow.comm.connect import connect
from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.launcher import launched_rank
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.world import World
from windrow.gnn import evaluation
from windrow.gnn.cache_choice import choose_inference_cache
from windrow.gnn.graph import Graph, Task
from windrow.gnn.inference import infer_sampled
from windrow.gnn.message_passing import Block
from windrow.gnn.models import ModelOptions, build_model
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import graph_to_store, partition_to_store
from windrow.gnn.pipeline import PipelineOptions
from windrow.gnn.sampler import NeighborSampler
from windrow.gnn.synthetic import community_graph
from windrow.launch import prediction
from windrow.launch.cli import main
from windrow.launch.commands import arguments
from windrow.launch.prediction import Prediction, predict
from windrow.launch.recipe import Recipe, make_recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.training import make_trainer, train
from windrow.partition import atomic_writes
from windrow.partition.book import PartitionBook
from windrow.partition.options import PartitionOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.training.checkpoint import load_checkpoint
from windrow.training.journal import read_records
from windrow.training.run_folder import open_run_folder

parquet = pytest.importorskip("pyarrow.parquet")

NUM_VERTICES = 240
FANOUTS = (4, 3)


def make_graph(task: Task = "single-label") -> Graph:
    classes = 2 if task == "binary" else 3
    return community_graph(NUM_VERTICES, classes, seed=7, num_features=6, signal=1.0, task=task)


def make(folder: Path, *, store: str = "store-1", **changes: dict[str, Any]) -> Recipe:
    sections: dict[str, Any] = {
        "graph": {"path": "graph.npz"},
        "model": {"hidden": 8, "num_layers": 2, "dropout": 0.3},
        "sampler": {"fanouts": list(FANOUTS)},
        "training": {"epochs": 3, "batch_size": 32, "learning_rate": 0.01},
        "evaluation": {"batch_size": 64},
        "run": {"tensorboard": False, "threads": 1, "deadline_s": 60, "keep_checkpoints": 9},
    }
    sections |= {name: sections.get(name, {}) | changed for name, changed in changes.items()}
    return make_recipe({"name": "tiny", "store": store, **sections}, source="tiny.toml", base=folder)


def store_graph(folder: Path, graph: Graph, *parts: int) -> None:
    for number in parts:
        graph_to_store(graph, folder / f"store-{number}", PartitionOptions(num_parts=number, method="random"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are several."""
    monkeypatch.setattr(prediction, "MOST_CHUNK_ROWS", 50)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a finished run, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    store_graph(folder, make_graph(), 1)
    train(make(folder), run_folder=folder / "run")
    return folder


def test_a_run_is_measured_as_in_training(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(prepared / "run"), "--json", str(prepared / "figures.json")]) == 0
    measured = json.loads((prepared / "figures.json").read_text())
    summary = json.loads((prepared / "run" / "summary.json").read_text())
    assert measured["test"][summary["metric"]] == pytest.approx(summary["test"])
    assert "validation" in capsys.readouterr().out
    assert main(["evaluate", str(prepared / "run"), "--log", "today.csv"]) == 2
    assert "is for the run of a model of clicks" in capsys.readouterr().err
    store_graph(tmp_path, new_graph(), 1)
    assert main(["evaluate", str(prepared / "run"), "--set", f"store={tmp_path / 'store-1'}"]) == 2
    assert "belongs to another graph" in capsys.readouterr().err


def predicted(
    recipe: Recipe, run: Path, out: Path, *, method: Any = "exact", fanouts: tuple[int, ...] = (), **options: Any
) -> Prediction:
    evaluation = dataclasses.replace(recipe.evaluation, method=method, fanouts=fanouts)
    return predict(dataclasses.replace(recipe, evaluation=evaluation), open_run_folder(run), out=out, **options)


def table(path: Path) -> dict[str, torch.Tensor]:
    columns = parquet.read_table(path).to_pydict()
    return {name: torch.tensor(values) for name, values in columns.items()}


def expected_logits(recipe: Recipe, run: Path, graph: Graph, *, best: bool = True) -> torch.Tensor:
    """Of all vertices in the user's order: the whole graph in one block."""
    found = load_checkpoint(run / "checkpoints", "best" if best else "latest")
    outputs = 1 if graph.task == "binary" else graph.num_classes
    model = build_model(recipe.model, in_features=6, out_features=outputs, seed=0)
    model.load_state_dict(found.state["trainer"]["model"])
    block = Block.whole(graph.indptr, graph.indices)
    with torch.no_grad():
        logits: torch.Tensor = model.eval()([block, block], graph.features)
    return logits


def assert_single_label(found: dict[str, torch.Tensor], logits: torch.Tensor) -> None:
    probabilities = logits.softmax(1)
    assert list(found) == ["vertex", "prediction", "probability"]
    assert torch.equal(found["prediction"], logits.argmax(1))
    torch.testing.assert_close(found["probability"], probabilities.max(1).values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpoint", ["best", "latest"])
def test_exact_predictions_of_all_vertices(prepared: Path, tmp_path: Path, checkpoint: str) -> None:
    recipe, run, out = make(prepared), prepared / "run", tmp_path / "p.parquet"
    result = predicted(recipe, run, out, checkpoint=checkpoint)
    found = table(out)
    assert torch.equal(found["vertex"], torch.arange(NUM_VERTICES))
    assert_single_label(found, expected_logits(recipe, run, make_graph(), best=checkpoint == "best"))
    assert (result.rows, result.out) == (NUM_VERTICES, out)
    # What was measured after that epoch of training, bit for bit.
    record = read_records(run / "metrics.jsonl")[result.epoch - 1]
    assert result.figures == {"validation": record.validation, "test": record.test}
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]


def test_the_file_says_what_it_is(prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    result = predicted(make(prepared), prepared / "run", out)
    kinds = {field.name: str(field.type) for field in parquet.read_schema(out)}
    assert kinds == {"vertex": "int64", "prediction": "int32", "probability": "float"}
    # A row group for each chunk of 50.
    assert parquet.ParquetFile(out).num_row_groups == 5
    result = predicted(make(prepared), prepared / "run", out, splits=("test",))
    about = json.loads(parquet.read_schema(out).metadata[b"windrow"])
    assert about == {
        "run": "tiny",
        "epoch": result.epoch,
        "method": "exact",
        "fanouts": None,
        "splits": ["test"],
        "accuracy": result.figures,
    }


def test_splits_alone_are_predicted_and_measured(prepared: Path, tmp_path: Path) -> None:
    recipe, run, graph = make(prepared), prepared / "run", make_graph()
    everything = tmp_path / "all.parquet"
    predicted(recipe, run, everything)
    for method in ("exact", "sampled"):
        some = tmp_path / f"{method}.parquet"
        result = predicted(
            recipe, run, some, splits=("test", "train"), method=method, fanouts=(-1, -1)[: 2 * (method == "sampled")]
        )
        wanted = torch.cat([graph.test_ids, graph.train_ids]).sort().values
        found, whole = table(some), table(everything)
        assert torch.equal(found["vertex"], wanted)
        assert torch.equal(found["prediction"], whole["prediction"][wanted])
        assert list(result.figures) == ["test", "train"]


def test_sampled_predictions_are_those_of_sampled_evaluation(prepared: Path, tmp_path: Path) -> None:
    recipe = make(prepared, evaluation={"method": "sampled"})
    run = tmp_path / "run"
    train(recipe, run_folder=run)
    result = predicted(recipe, run, tmp_path / "p.parquet", method="sampled")
    record = read_records(run / "metrics.jsonl")[result.epoch - 1]
    assert result.figures == {"validation": record.validation, "test": record.test}
    assert result.rows == NUM_VERTICES
    exact = predicted(recipe, run, tmp_path / "exact.parquet")
    assert not torch.equal(
        table(tmp_path / "p.parquet")["probability"], table(tmp_path / "exact.parquet")["probability"]
    )
    assert exact.rows == NUM_VERTICES


@pytest.mark.parametrize(
    ("task", "column"), [("binary", "probability"), ("multi-label", "probabilities"), ("regression", "prediction")]
)
def test_other_tasks(tmp_path: Path, task: Task, column: str) -> None:
    graph = make_graph(task)
    store_graph(tmp_path, graph, 1)
    recipe, run = make(tmp_path, training={"epochs": 1}), tmp_path / "run"
    train(recipe, run_folder=run)
    result = predicted(recipe, run, tmp_path / "p.parquet")
    found = table(tmp_path / "p.parquet")
    assert list(found) == ["vertex", column]
    logits = expected_logits(recipe, run, graph)
    wanted = logits if task == "regression" else logits.sigmoid()
    torch.testing.assert_close(
        found[column], wanted if task == "multi-label" else wanted.flatten(), rtol=1e-4, atol=1e-5
    )
    assert result.metric == ("rmse" if task == "regression" else "roc_auc")


def new_graph(width: int = 6) -> Graph:
    return community_graph(300, 3, seed=8, num_features=width, signal=1.0)


def save_graph(path: Path, graph: Graph, **arrays: Any) -> None:
    targets = torch.arange(graph.num_vertices).repeat_interleave(graph.indptr.diff())
    assert graph.features is not None
    np.savez(path, edges=torch.stack([graph.indices.long(), targets], 1), x=graph.features, **arrays)


def test_vertices_of_another_graph(prepared: Path, tmp_path: Path) -> None:
    recipe, run, graph = make(prepared), prepared / "run", new_graph()
    # Few labels, and of fewer classes: all that is wanted are predictions.
    few = np.where(np.arange(300) < 4, np.arange(300) % 2, -1)
    save_graph(tmp_path / "bare.npz", graph)
    save_graph(tmp_path / "few.npz", graph, y=few)
    nothing = torch.empty(0, dtype=torch.int64)
    bare = dataclasses.replace(graph, labels=None, train_ids=nothing, validation_ids=nothing, test_ids=nothing)
    store_graph(tmp_path, bare, 1)
    options: dict[str, Path]
    for options in ({"graph": tmp_path / "bare.npz"}, {"graph": tmp_path / "few.npz"}, {"store": tmp_path / "store-1"}):
        out = tmp_path / "p.parquet"
        result = predicted(recipe, run, out, **options)
        assert_single_label(table(out), expected_logits(recipe, run, graph))
        assert (result.rows, result.figures) == (300, {})
        about = json.loads(parquet.read_schema(out).metadata[b"windrow"])
        assert about["graph"] == str(*options.values())
        assert "accuracy" not in about
    assert predicted(recipe, run, out, graph=tmp_path / "few.npz", splits=("test",)).figures.keys() == {"test"}
    # In files that are called otherwise the format is that of the run's own.
    (tmp_path / "few.npz").rename(tmp_path / "few.arrays")
    named = dataclasses.replace(recipe, graph=dataclasses.replace(recipe.graph, path="g.arrays", format="npz"))
    assert predicted(named, run, out, graph=tmp_path / "few.arrays").rows == 300


def test_features_of_another_graph_are_scaled_as_those_of_the_runs(tmp_path: Path) -> None:
    trained, other = make_graph(), new_graph()
    assert trained.features is not None
    assert other.features is not None
    trained.features[:, 2] = 4
    other.features.mul_(3).add_(1)
    for name, graph in (("graph", trained), ("other", other)):
        assert graph.labels is not None
        save_graph(tmp_path / f"{name}.npz", graph, y=graph.labels.numpy())
    reading = {"standardise": "standard", "random_split": {"kind": "fractions"}}
    recipe = make(tmp_path, graph=reading, training={"epochs": 1}, partition={"num_parts": 1})
    partition_to_store(recipe)
    train(recipe, run_folder=tmp_path / "run")
    from_other = make(tmp_path, store="store-other", graph={"path": "other.npz", **reading}, partition={"num_parts": 1})
    partition_to_store(from_other)
    deviation = trained.features.std(0, correction=0)
    scaled = (other.features - trained.features.mean(0)) / deviation
    scaled[:, 2] = 0
    expected = expected_logits(recipe, tmp_path / "run", dataclasses.replace(other, features=scaled))
    out = tmp_path / "p.parquet"
    for options in ({"graph": tmp_path / "other.npz"}, {"store": tmp_path / "store-other"}):
        predicted(recipe, tmp_path / "run", out, **options)
        assert_single_label(table(out), expected)


def test_another_graph_is_measured_where_a_split_is_asked_for(prepared: Path, tmp_path: Path) -> None:
    recipe, run, graph = make(prepared), prepared / "run", new_graph()
    store_graph(tmp_path, graph, 1)
    result = predicted(recipe, run, tmp_path / "p.parquet", store=tmp_path / "store-1", splits=("test",))
    assert graph.labels is not None
    right = expected_logits(recipe, run, graph).argmax(1)[graph.test_ids] == graph.labels[graph.test_ids]
    assert result.figures == {"test": pytest.approx(float(right.float().mean()))}


def test_another_graph_that_does_not_fit_is_refused(prepared: Path, tmp_path: Path) -> None:
    recipe, run, out = make(prepared), prepared / "run", tmp_path / "p.parquet"
    save_graph(tmp_path / "wide.npz", new_graph(7))
    refused(recipe, run, out, DataError, "the graph has 7 features for each vertex", graph=tmp_path / "wide.npz")
    refused(recipe, run, out, DataError, "no such file", graph=tmp_path / "none.npz")
    store_graph(tmp_path, community_graph(60, 4, seed=1, num_features=6), 1)
    options: dict[str, Any] = {"store": tmp_path / "store-1", "splits": ("test",)}
    words = r"has 4 classes or columns of labels .single-label., but the model was trained on 3"
    refused(recipe, run, out, DataError, words, **options)


def test_hidden_vectors(prepared: Path, tmp_path: Path) -> None:
    recipe, run, out = make(prepared), prepared / "run", tmp_path / "hidden.npy"
    save_graph(tmp_path / "new.npz", new_graph())
    options: dict[str, Any]
    for graph, options in ((make_graph(), {}), (new_graph(), {"graph": tmp_path / "new.npz"})):
        predicted(recipe, run, out, hidden=True, **options)
        found = torch.from_numpy(np.load(out))
        assert found.shape == (graph.num_vertices, 8)
        model = build_model(recipe.model, in_features=6, out_features=3, seed=0)
        model.load_state_dict(load_checkpoint(run / "checkpoints", "best").state["trainer"]["model"])
        with torch.no_grad():
            logits = model.layer_forward(1, Block.whole(graph.indptr, graph.indices), found)
        torch.testing.assert_close(logits, expected_logits(recipe, run, graph), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.parallel(2))])
def test_rows_of_vertices_are_learnt_where_there_are_no_features(shared_tmp_path: Path, ranks: int) -> None:
    run, out = shared_tmp_path / "run", shared_tmp_path / "p.parquet"
    if launched_rank() == 0:
        store_graph(shared_tmp_path, dataclasses.replace(make_graph(), features=None), *{1, ranks})
    with connect() as world:
        world.barrier(stage="store")
    tables = {"dim": 4, "initial_scale": 1.0, "learning_rate": 0.1}
    recipe = make(shared_tmp_path, store=f"store-{ranks}", model={"embedding": True}, tables=tables)
    result = train(recipe, run_folder=run)
    found = predicted(recipe, run, out)
    record = read_records(run / "metrics.jsonl")[found.epoch - 1]
    assert found.figures == pytest.approx({"validation": record.validation, "test": record.test})
    assert (found.rows, result.test) == (NUM_VERTICES, record.test)
    assert main(["evaluate", str(run)]) == 0
    if launched_rank() == 0:
        # Rows are those of the user's vertices, wherever the partition has them.
        one = make(shared_tmp_path, model={"embedding": True}, tables=tables, run={"backend": "loopback"})
        predicted(one, run, shared_tmp_path / "one.parquet")
        torch.testing.assert_close(table(shared_tmp_path / "one.parquet"), table(out), rtol=1e-4, atol=1e-5)
    if ranks == 1:  # An error ends a job of several.
        with pytest.raises(RecipeError, match="none of others: leave out --graph"):
            predicted(recipe, run, out, store=recipe.store)


def test_hidden_vectors_are_the_first_rows_of_an_embedding_table(
    prepared: Path, tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]
) -> None:
    vectors = tmp_path / "hidden.npy"
    predicted(make(prepared), prepared / "run", vectors, hidden=True)
    clicks = [f"{number % 2},{number % NUM_VERTICES},{number % 7}" for number in range(400)]
    (tmp_path / "log.csv").write_text("\n".join(["click,item,day", *clicks]) + "\n")
    recipe = click_recipe(
        tmp_path,
        log={
            "dense": [],
            "features": {"item": {"ids": "rows", "rows": NUM_VERTICES}, "day": {"ids": "rows", "rows": 7}},
        },
        tables={"dim": 8, "pretrained": {"item": str(vectors)}},
        model={"top": [8]},
    )
    prepare_log(recipe.store, recipe.log, recipe.split)
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        tables = trainer.task.local_tables()
        assert tables is not None
        parts = [part for table in tables for part in table.state()]
        (rows,) = [part.tensor for part in parts if (part.piece.name, part.name) == ("item", "weight")]
        assert torch.equal(rows, torch.from_numpy(np.load(vectors)))
        assert trainer.train_epoch(0) > 0


def test_ids_of_a_vertex_file_come_along(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vertices = tmp_path / "people.csv"
    names = [f"p{number * 7 % NUM_VERTICES}" for number in range(NUM_VERTICES)]
    vertices.write_text("\n".join(["name", *names]) + "\n")
    columns = {"ids": "names", "vertex_file": str(vertices), "vertex_id_column": "name"}
    recipe, out = make(prepared, graph={"edge_list": columns}), tmp_path / "p.parquet"
    predicted(recipe, prepared / "run", out, splits=("test",))
    found = parquet.read_table(out).to_pydict()
    assert found["id"] == [names[vertex] for vertex in found["vertex"]]
    vertices.write_text("\n".join(["name", *names[1:]]) + "\n")
    out.unlink()
    refused(recipe, prepared / "run", out, DataError, "has 239 rows, but the graph 240 vertices")
    vertices.unlink()
    predicted(recipe, prepared / "run", out)
    assert "id" not in parquet.read_schema(out).names
    assert "people.csv is not there any more" in capsys.readouterr().out


@pytest.mark.parallel(2)
def test_two_ranks_predict_what_one_does(shared_tmp_path: Path) -> None:
    from mpi4py import MPI

    folder, graph = shared_tmp_path, make_graph()
    if launched_rank() == 0:
        store_graph(folder, graph, 1, 2)
        # A world of this process alone needs no launcher.
        train(make(folder, training={"epochs": 1}, run={"backend": "loopback"}), run_folder=folder / "run")
    MPI.COMM_WORLD.Barrier()
    recipe = make(folder, store="store-2")
    exact = predicted(recipe, folder / "run", folder / "exact.parquet")
    sampled = predicted(recipe, folder / "run", folder / "sampled.parquet", method="sampled")
    some = predicted(recipe, folder / "run", folder / "some.parquet", method="sampled", splits=("test",))
    if launched_rank() == 0:
        save_graph(folder / "new.npz", new_graph())
    MPI.COMM_WORLD.Barrier()
    new = {"graph": folder / "new.npz"}
    predicted(recipe, folder / "run", folder / "new.parquet", **new)
    predicted(recipe, folder / "run", folder / "hidden.npy", hidden=True, **new)
    for result in (exact, sampled, some):
        assert len({repr(each) for each in MPI.COMM_WORLD.allgather(result)}) == 1
    if launched_rank() == 0:
        found = table(folder / "exact.parquet")
        assert torch.equal(found["vertex"], torch.arange(NUM_VERTICES))
        assert_single_label(found, expected_logits(recipe, folder / "run", graph))
        alone = make(folder, run={"backend": "loopback"})
        for method, result in (("exact", exact), ("sampled", sampled)):
            out = folder / "alone.parquet"
            expected = predicted(alone, folder / "run", out, method=method)
            torch.testing.assert_close(table(out), table(folder / f"{method}.parquet"), rtol=1e-4, atol=1e-5)
            assert result.figures == pytest.approx(expected.figures)
        assert_single_label(table(folder / "new.parquet"), expected_logits(recipe, folder / "run", new_graph()))
        predicted(alone, folder / "run", folder / "alone.npy", hidden=True, **new)
        np.testing.assert_allclose(np.load(folder / "hidden.npy"), np.load(folder / "alone.npy"), rtol=1e-4, atol=1e-5)
        wanted = graph.test_ids.sort().values
        rows = table(folder / "some.parquet")
        assert torch.equal(rows["vertex"], wanted)
        torch.testing.assert_close(
            rows["probability"], table(folder / "sampled.parquet")["probability"][wanted], rtol=1e-4, atol=1e-5
        )
    MPI.COMM_WORLD.Barrier()


# -------------------------------------------------------------------------------------------------------------- refused


def refused(recipe: Recipe, run: Path, out: Path, error: type[Exception], words: str, **options: Any) -> None:
    """Refused, and nothing is written."""
    with pytest.raises(error, match=words):
        predicted(recipe, run, out, **options)
    assert not out.is_file()


def test_what_does_not_fit_the_run(prepared: Path, tmp_path: Path) -> None:
    run, out = prepared / "run", tmp_path / "p.parquet"
    refused(make(prepared, model={"hidden": 9}), run, out, StoreError, "another recipe: model.hidden was 8 and is 9")
    graph = make_graph()
    assert graph.features is not None
    graph.features[3, 2] += 1
    store_graph(tmp_path, graph, 1)
    refused(make(prepared, store=str(tmp_path / "store-1")), run, out, StoreError, "belongs to another graph")


def test_a_run_that_was_never_evaluated_has_a_latest_checkpoint(prepared: Path, tmp_path: Path) -> None:
    run, out = prepared / "run", tmp_path / "p.parquet"
    empty = tmp_path / "run"
    empty.mkdir()
    (empty / "recipe.toml").write_bytes((run / "recipe.toml").read_bytes())
    refused(make(prepared), empty, out, StoreError, "no checkpoint in .* is marked as the best")
    refused(make(prepared), empty, out, StoreError, "no intact checkpoint", checkpoint="latest")


def test_a_split_without_vertices(tmp_path: Path) -> None:
    graph = dataclasses.replace(make_graph(), test_ids=torch.empty(0, dtype=torch.int64))
    store_graph(tmp_path, graph, 1)
    recipe = make(tmp_path, training={"epochs": 1})
    train(recipe, run_folder=tmp_path / "run")
    out = tmp_path / "p.parquet"
    refused(recipe, tmp_path / "run", out, DataError, "has no test vertices", splits=("test",))
    assert list(predicted(recipe, tmp_path / "run", out).figures) == ["validation"]


def test_what_cannot_be_written_is_refused_early(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = make(prepared), prepared / "run"
    refused(recipe, run, tmp_path, StoreError, "is a folder: name a file in it")
    refused(recipe, run, tmp_path / "no" / "p.parquet", StoreError, "there is no folder .*no: make it")
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    cure = r"pyarrow, which is not installed: pip install 'windrow\[parquet\]'"
    refused(recipe, run, tmp_path / "p.parquet", RecipeError, cure)


def test_a_model_that_diverged_leaves_the_old_file(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.parquet"
    out.write_bytes(b"old")
    lost = torch.zeros(NUM_VERTICES, 3)
    lost[7] = np.nan
    monkeypatch.setattr(evaluation, "infer_exactly", lambda *_, **__: lost)
    monkeypatch.setattr(prediction, "measure_split", lambda *_: {"accuracy": 0.5})
    with pytest.raises(DataError, match=r"prediction for vertex \d+ is NaN or infinite"):
        predicted(make(prepared), prepared / "run", out)
    assert out.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]


def test_a_full_disk_leaves_the_old_file(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "p.parquet"
    out.write_bytes(b"old")
    monkeypatch.setattr(atomic_writes.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StoreError, match=r"cannot write .*p\.parquet: No space left.*Choose another --out"):
        predicted(make(prepared), prepared / "run", out)
    assert out.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.parquet"]


CACHED_VERTICES, HOPS = 600, (3, 2)
GRAPH = community_graph(CACHED_VERTICES, 3, seed=3, num_features=6)


def cached_recipe(batch_size: int = 60, **cache: Any) -> Recipe:
    sections: dict[str, Any] = {
        "graph": {"path": "g.npz"},
        "model": {"num_layers": 2},
        "sampler": {"fanouts": list(HOPS)},
        "evaluation": {"batch_size": batch_size},
        "cache": cache,
    }
    return make_recipe({"name": "r", "store": "s", **sections}, source="r.toml", base=Path("/"))


def make_part(world: World) -> PartitionedGraph:
    assignment = np.arange(CACHED_VERTICES) * 7 % 3 % world.size
    return PartitionedGraph.from_graph(GRAPH, PartitionBook.from_assignment(assignment, world.size), world.rank)


def rows_moved(world: World, part: PartitionedGraph, cached_ids: torch.Tensor) -> int:
    """Rows that a pass over all vertices brings here, filling the cache included."""
    world.meter = meter = Meter()
    store = CachedStore(world, part.offsets, part.features, cached_ids=cached_ids, stage="features")
    sampler = NeighborSampler(
        part.indptr, part.indices, HOPS, seed=1, original_ids=part.original_ids, source_degrees=True
    )
    infer_sampled(
        world,
        part,
        build_model(ModelOptions(hidden=4, num_layers=2), in_features=6, out_features=3, seed=2).eval(),
        None,
        sampler=sampler,
        store=store,
        options=PipelineOptions(),
        batch_size=60,
    )
    return meter.totals("features: rows").rows_received + meter.totals("features: cache: rows").rows_received


def inference_cache(world: World, part: PartitionedGraph, ids: torch.Tensor | None, asked: Recipe) -> torch.Tensor:
    return choose_inference_cache(world, part, ids, asked.cache, fanouts=HOPS, batch_size=asked.evaluation.batch_size)


def test_without_features_nothing_is_kept() -> None:
    def body(world: World) -> int:
        part = make_part(world)
        part = dataclasses.replace(part, features=part.features[:, :0])
        return len(inference_cache(world, part, None, cached_recipe(alpha=0.5)))

    assert Loopback.run(3, body) == [0, 0, 0]


@pytest.mark.parametrize("alpha", [0.5, "auto"])
def test_fewer_rows_travel(alpha: float | str) -> None:
    def body(world: World) -> tuple[int, int, int]:
        part = make_part(world)
        chosen = inference_cache(world, part, None, cached_recipe(alpha=alpha))
        start, stop = part.own_range
        assert not bool(((chosen >= start) & (chosen < stop)).any())
        assert len(chosen.unique()) == len(chosen)
        return len(chosen), rows_moved(world, part, chosen), rows_moved(world, part, chosen[:0])

    for kept, with_cache, without in Loopback.run(3, body):
        assert kept > 0
        assert with_cache < without
        if alpha == 0.5:
            assert kept <= 100


def test_what_is_needed_once_is_not_kept() -> None:
    """One minibatch for everything: each row travels once, whatever is kept."""

    def body(world: World) -> int:
        return len(inference_cache(world, make_part(world), None, cached_recipe(10_000, alpha=1.0)))

    assert Loopback.run(3, body) == [0, 0, 0]


def test_no_room_no_vertices_and_nobody_else() -> None:
    def kept(world: World, ids: torch.Tensor | None, **cache: Any) -> int:
        return len(inference_cache(world, make_part(world), ids, cached_recipe(**cache)))

    nothing = torch.empty(0, dtype=torch.int64)
    assert Loopback.run(2, lambda world: kept(world, None, alpha=0.0)) == [0, 0]
    assert Loopback.run(2, lambda world: kept(world, nothing, alpha=1.0)) == [0, 0]
    assert Loopback.run(2, lambda world: kept(world, None, memory_gib=0.0)) == [0, 0]
    assert kept(Loopback.single(), None) == 0
