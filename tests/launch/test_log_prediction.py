"""windrow predict and windrow evaluate on a log: samples of its splits, and files that came later."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import csv, parquet

from windrow import recsys
from windrow.comm.launcher import launched_rank
from windrow.launch.cli import main
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import write_toml
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, click_recipe: Callable[..., RecommendationRecipe]) -> Path:
    """A run of one process on a small log, which lies beside it."""
    folder = tmp_path_factory.mktemp("run")
    rows = [f"{int(number % 3 == 0)},{number % 7 / 7},{number % 30}" for number in range(400)]
    (folder / "log.csv").write_text("\n".join(["click,x,item", *rows]) + "\n")
    features = {"item": {"ids": "vocabulary"}}
    recipe = click_recipe(folder, log={"dense": ["x"], "features": features}, model={"top": [8]})
    prepare_log(recipe.store, recipe.log, recipe.split)
    write_toml(folder / "log.toml", recipe.settings())
    assert main(["train", str(folder / "log.toml"), "--run-folder", str(folder / "run")]) == 0
    return folder / "run"


def test_samples_of_a_split_and_the_same_ones_as_a_file(run_folder: Path, tmp_path: Path) -> None:
    folder = run_folder.parent
    assert main(["predict", str(run_folder)]) == 0
    of_split = parquet.read_table(run_folder / "predictions.parquet")
    assert of_split.column_names == ["row", "click"]
    store = LogStore.open(folder / "clicks")
    assert of_split["row"].to_pylist() == list(range(store.split("test").rows))
    # Samples without a label, in the order of the file.
    rows = csv.read_csv(folder / "log.csv")
    csv.write_csv(rows.drop_columns("click"), tmp_path / "new.csv")
    out = tmp_path / "scores.parquet"
    assert main(["predict", str(run_folder), "--log", str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    scores = parquet.read_table(out)
    assert scores.num_rows == rows.num_rows
    assert set(of_split["click"].to_pylist()) <= set(scores["click"].to_pylist())
    clicked = torch.tensor(rows["click"].to_pylist()) > 0
    predicted = torch.tensor(scores["click"].to_pylist())
    assert predicted[clicked].mean() > predicted[~clicked].mean()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_figures_of_the_run_and_of_later_samples(run_folder: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(run_folder), "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    summary = json.loads((run_folder / "summary.json").read_text())
    assert figures["test"]["auc"] == pytest.approx(summary["test"])
    log = run_folder.parent / "log.csv"
    assert main(["evaluate", str(run_folder), "--log", str(log), "--json", str(tmp_path / "later.json")]) == 0
    later = json.loads((tmp_path / "later.json").read_text())
    assert set(later) == {"test"}
    assert 0.5 < later["test"]["auc"] <= 1


def test_the_exported_model_says_the_same(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "served"
    assert main(["export", str(run_folder), "--format", "model", "--out", str(out)]) == 0
    log = run_folder.parent / "log.csv"
    scores = tmp_path / "scores.parquet"
    assert main(["predict", str(run_folder), "--log", str(log), "--out", str(scores)]) == 0
    expected = torch.tensor(parquet.read_table(scores)["click"].to_pylist())
    torch.testing.assert_close(recsys.load(out).predict(csv.read_csv(log)), expected, rtol=1e-5, atol=1e-6)
    small = ["export", str(run_folder), "--table-bits", "8", "--out", str(out)]
    assert main([*small, "--format", "safetensors"]) == 2
    assert main([*small, "--format", "model"]) == 0
    of_few_bits = recsys.load(out).predict(csv.read_csv(log))
    assert not torch.equal(of_few_bits, expected)
    torch.testing.assert_close(of_few_bits, expected, rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("log", "metric"),
    [({"label": ["click", "buy"], "sample_weight": "weight"}, "auc"), ({"label": "x", "label_kind": "real"}, "rmse")],
)
def test_recipes_with_other_labels(
    tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe], log: dict[str, Any], metric: str
) -> None:
    rows = [f"{n % 2},{int(n % 3 > 0)},{n % 7 / 7},{n % 2 + 1},{n % 30}" for n in range(300)]
    (tmp_path / "log.csv").write_text("\n".join(["click,buy,x,weight,item", *rows]) + "\n")
    sections = {"log": {"dense": [], "features": {"item": {}}} | log, "model": {"top": [8], "embeddings_in_top": True}}
    write_toml(tmp_path / "log.toml", click_recipe(tmp_path, **sections).settings())
    run = tmp_path / "run"
    assert main(["prepare", str(tmp_path / "log.toml")]) == 0
    assert main(["train", str(tmp_path / "log.toml"), "--run-folder", str(run)]) == 0
    assert json.loads((run / "summary.json").read_text())["metric"] == metric
    assert main(["predict", str(run), "--split", "validation"]) == 0
    labels = [log["label"]] if isinstance(log["label"], str) else log["label"]
    assert parquet.read_table(run / "predictions.parquet").column_names == ["row", *labels]


def test_refusals_name_the_cure(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bare.csv").write_text("x,item\n0.5,3\n")
    for arguments, words in (
        (["evaluate", str(run_folder), "--log", str(tmp_path / "bare.csv")], "has no labels"),
        (["predict", str(run_folder), "--log", "a.csv", "--split", "test"], "give one of both"),
        (["predict", str(run_folder), "--split", "train", "--fanouts", "2"], "are for graphs"),
        (["predict", str(run_folder), "--log", str(tmp_path / "none.csv")], "none.csv"),
        (["predict", str(run_folder), "--out", str(tmp_path / "no" / "a.parquet")], "there is no folder"),
        (["predict", str(run_folder), "--out", str(tmp_path)], "is a folder: name a file in it"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err


def test_the_run_is_looked_at_before_samples_are(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(run_folder.parent, tmp_path / "copy")) / "run"
    for file in (run / "checkpoints").iterdir():
        file.unlink() if file.is_file() else shutil.rmtree(file)
    assert main(["evaluate", str(run), "--log", "nowhere.csv"]) == 2
    assert "no checkpoint in" in capsys.readouterr().err


@pytest.mark.parallel(2)
def test_two_ranks_score_as_one_does(run_folder: Path, tmp_path: Path) -> None:
    from mpi4py import MPI

    shared = Path(MPI.COMM_WORLD.bcast(str(run_folder.parent)))
    log, out = shared / "log.csv", shared / f"scores-{MPI.COMM_WORLD.size}.parquet"
    assert main(["predict", str(shared / "run"), "--log", str(log), "--out", str(out)]) == 0
    MPI.COMM_WORLD.barrier()
    if launched_rank() == 0:
        shutil.copy(out, tmp_path / "scores.parquet")
        assert parquet.read_table(tmp_path / "scores.parquet").num_rows == 400
