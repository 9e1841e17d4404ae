"""windrow.launch.commands.train: which recipe is loaded, what is passed on, what is said at the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from windrow.launch import training
from windrow.launch.cli import main
from windrow.launch.commands.train import summary_lines
from windrow.launch.recipe import Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.launch.settings import write_toml
from windrow.launch.training import TrainingResult
from windrow.training.run_folder import create_run_folder

RECIPE = {"name": "r", "store": "s", "graph": {"path": "g.npz"}}


def result(**changes: Any) -> TrainingResult:
    values: dict[str, Any] = {
        "run_folder": Path("runs/r-1"),
        "metric": "roc_auc",
        "best_epoch": 3,
        "validation": 0.83,
        "test": 0.82,
        "epochs": 5,
        "seconds": 12.0,
    }
    return TrainingResult(**(values | changes))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, Path | None, Path | None]]:
    """Records how training is called, in place of training."""
    made: list[tuple[Recipe, Path | None, Path | None]] = []

    def train(
        recipe: Recipe, *, resume: Path | None = None, run_folder: Path | None = None, trace: bool = False
    ) -> TrainingResult:
        made.append((recipe, resume, run_folder))
        return result()

    monkeypatch.setattr(training, "train", train)
    return made


def test_recipe_overrides_and_folder_are_passed_on(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_toml(tmp_path / "r.toml", RECIPE)
    arguments = ["train", str(tmp_path / "r.toml"), "--set", "training.epochs=7", "--run-folder", "runs/x"]
    assert main(arguments) == 0
    [(recipe, resume, run_folder)] = calls
    assert (recipe.training.epochs, resume, run_folder) == (7, None, Path("runs/x"))
    assert "best epoch 3" in capsys.readouterr().out


@pytest.mark.parametrize("wanted", [True, False])
def test_a_timeline_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    train = Mock(return_value=result())
    monkeypatch.setattr(training, "train", train)
    write_toml(tmp_path / "r.toml", RECIPE)
    assert main(["train", str(tmp_path / "r.toml"), *["--trace"] * wanted]) == 0
    assert train.call_args.kwargs["trace"] is wanted


def test_resuming_takes_the_recipe_of_the_run(tmp_path: Path, calls: list[Any]) -> None:
    create_run_folder(tmp_path / "run", RECIPE | {"model": {"hidden": 9}})
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    [(recipe, resume, run_folder)] = calls
    assert (recipe.model.hidden, resume, run_folder) == (9, tmp_path / "run", None)


def test_a_recipe_of_a_log_is_understood(
    tmp_path: Path, calls: list[Any], click_recipe: Callable[..., RecommendationRecipe]
) -> None:
    recipe = click_recipe(tmp_path)
    write_toml(tmp_path / "r.toml", recipe.settings())
    assert main(["train", str(tmp_path / "r.toml"), "--set", "log.features.user.rows=50"]) == 0
    [(passed, _, _)] = calls
    assert isinstance(passed, RecommendationRecipe)
    assert passed.log.features["user"].rows == 50


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "name a recipe"), (["--resume", "absent"], "absent holds no run")]
)
def test_wrong_use_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["train", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_job_that_may_be_started_again(tmp_path: Path, calls: list[Any]) -> None:
    write_toml(tmp_path / "r.toml", RECIPE)
    assert main(["train", str(tmp_path / "r.toml"), "--run-folder", "runs/x", "--resume", "auto"]) == 0
    create_run_folder(tmp_path / "run", RECIPE | {"model": {"hidden": 9}})
    assert main(["train", "--run-folder", str(tmp_path / "run"), "--resume", "auto"]) == 0
    [(_, *first), (recipe, *second)] = calls
    assert (first, second) == (["auto", Path("runs/x")], ["auto", tmp_path / "run"])
    assert recipe.model.hidden == 9


def test_summary() -> None:
    assert summary_lines(result()) == [
        "finished 5 epochs in 12.00 s",
        "best epoch 3: valid roc_auc 0.8300, test roc_auc 0.8200",
        "everything about the run is in runs/r-1",
    ]
    figures = {"test normalised entropy": 0.98765, "test log loss": 0.5, "test auc": 0.7}
    assert summary_lines(result(figures=figures))[2:4] == [
        "test auc 0.7000",
        "test normalised entropy 0.9877 (1.0: no better than the base rate of the test samples)",
    ]
    assert len(summary_lines(result(best_epoch=None, validation=None, test=None))) == 2


def test_a_bad_recipe_is_refused_before_training(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_toml(tmp_path / "r.toml", RECIPE | {"trainig": {"epochs": 3}})
    assert main(["train", str(tmp_path / "r.toml")]) == 2
    said = capsys.readouterr().err
    assert "r.toml" in said
    assert "has no key 'trainig'. Did you mean 'training'" in said
    assert not calls
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.toml"]
