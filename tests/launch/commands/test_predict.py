"""windrow.launch.commands.predict: what is passed on, what is said at the end, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windrow.launch import prediction
from windrow.launch.cli import main
from windrow.launch.commands.predict import summary_lines
from windrow.launch.prediction import PredictionOptions, PredictionResult
from windrow.launch.recipe import Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.training.run_folder import RunFolder, create_run_folder

RECIPE = {"name": "r", "store": "s", "graph": {"path": "g.npz"}}


def result(out: Path, **figures: float) -> PredictionResult:
    return PredictionResult(
        out=out,
        num_vertices=12_000,
        epoch=7,
        metric="roc_auc",
        figures=figures,
        inference_seconds=2.0,
        writing_seconds=0.25,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, RunFolder, PredictionOptions]]:
    """Records how predictions are asked for, in place of making them."""
    made: list[tuple[Recipe, RunFolder, PredictionOptions]] = []

    def predict(recipe: Recipe, run_folder: RunFolder, options: PredictionOptions) -> PredictionResult:
        made.append((recipe, run_folder, options))
        options.out.write_bytes(b"1234")
        return result(options.out, test=0.75)

    monkeypatch.setattr(prediction, "predict", predict)
    return made


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return create_run_folder(tmp_path / "run", RECIPE).path


def test_all_vertices_go_to_the_run_folder(
    run_folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # "all" wins over a split.
    assert main(["predict", str(run_folder), "--split", "test", "--split", "all"]) == 0
    [(recipe, folder, options)] = calls
    assert (recipe.name, folder.path) == ("r", run_folder)
    assert options == PredictionOptions(out=run_folder / "predictions.parquet")
    said = capsys.readouterr().out.splitlines()
    assert said == summary_lines(result(options.out, test=0.75))


def test_arguments_are_passed_on(run_folder: Path, tmp_path: Path, calls: list[Any]) -> None:
    out = tmp_path / "p.parquet"
    arguments = f"predict {run_folder} --out {out} --checkpoint latest --method sampled".split()
    arguments += ["--fanouts", "20,-1,5", "--split", "test", "--split", "train", "--split", "test"]
    assert main([*arguments, "--set", "run.threads=3", "--set", f"store={tmp_path}/other"]) == 0
    [(recipe, _, options)] = calls
    assert (recipe.run.threads, recipe.store) == (3, tmp_path / "other")
    assert options == PredictionOptions(
        out=out, checkpoint="latest", method="sampled", fanouts=(20, -1, 5), splits=("test", "train")
    )


def test_another_graph_and_hidden_vectors(run_folder: Path, tmp_path: Path, calls: list[Any]) -> None:
    assert main(["predict", str(run_folder), "--hidden", "--graph", "new.npz"]) == 0
    assert main(["predict", str(run_folder), "--store", "stores/new"]) == 0
    assert [options for _, _, options in calls] == [
        PredictionOptions(out=run_folder / "hidden.npy", graph=Path("new.npz"), hidden=True),
        PredictionOptions(out=run_folder / "predictions.parquet", store=Path("stores/new")),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graph", "a.npz", "--store", "b"], "--graph a.npz with --store b: give one of them"),
        (["--hidden", "--split", "test"], "leave out --method and --split"),
        (["--hidden", "--method", "sampled"], "leave out --method and --split"),
        (["--hidden", "--out", "h.parquet"], "--out h.parquet: hidden vectors are written as a NumPy array"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    run_folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["predict", str(run_folder), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not calls


def test_summary(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    out.write_bytes(bytes(2048))
    assert summary_lines(result(out, validation=0.5, test=0.25)) == [
        "predicted 12000 vertices after epoch 7",
        "inference took 2.00 s (6.0k vertices per second), writing 0.25 s",
        "validation roc_auc 0.5000, test roc_auc 0.2500",
        f"{out}: 2.0 KiB",
    ]
    assert len(summary_lines(result(out))) == 3


def test_a_recommendation_run_and_no_run_are_refused(
    tmp_path: Path,
    calls: list[Any],
    capsys: pytest.CaptureFixture[str],
    click_recipe: Callable[..., RecommendationRecipe],
) -> None:
    run = create_run_folder(tmp_path / "run", click_recipe(tmp_path).settings()).path
    assert main(["predict", str(run)]) == 2
    said = capsys.readouterr().err
    assert "is no prepared log: run `windrow prepare` again" in said
    assert not calls
    assert main(["predict", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--fanouts", "5,5"], "--fanouts 5,5 with --method exact"), (["--set", "model.hiden=3"], "no key 'hiden'")],
)
def test_wrong_use_is_refused(
    run_folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["predict", str(run_folder), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not calls


@pytest.mark.parametrize("fanouts", ["5,x", "0,5", ""])
def test_fanouts_that_are_none(run_folder: Path, capsys: pytest.CaptureFixture[str], fanouts: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["predict", str(run_folder), "--method", "sampled", "--fanouts", fanouts])
    assert caught.value.code == 2
    assert "--fanouts" in capsys.readouterr().err
