"""windrow.launch.commands.predict: what is passed on, what is said at the end, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windrow.launch import prediction
from windrow.launch.cli import main
from windrow.launch.commands.predict import summary_lines
from windrow.launch.prediction import Prediction
from windrow.launch.recipe import Recipe
from windrow.launch.recommendation_recipe import RecommendationRecipe
from windrow.training.run_folder import RunFolder, create_run_folder

RECIPE = {"name": "r", "store": "s", "graph": {"path": "g.npz"}}


def result(out: Path, **figures: float) -> Prediction:
    return Prediction(out=out, rows=12_000, epoch=7, metric="roc_auc", figures=figures)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, RunFolder, dict[str, Any]]]:
    """Records how predictions are asked for, in place of making them."""
    made: list[tuple[Recipe, RunFolder, dict[str, Any]]] = []

    def predict(recipe: Recipe, run_folder: RunFolder, **options: Any) -> Prediction:
        made.append((recipe, run_folder, options))
        options["out"].write_bytes(b"1234")
        return result(options["out"], test=0.75)

    monkeypatch.setattr(prediction, "predict", predict)
    return made


def options(out: Path, **changes: Any) -> dict[str, Any]:
    """What is passed on where nothing else is said."""
    usual = {"checkpoint": "best", "splits": (), "graph": None, "store": None, "hidden": False}
    return {"out": out, **usual, **changes}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return create_run_folder(tmp_path / "run", RECIPE).path


def test_all_vertices_go_to_the_run_folder(
    run_folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    # "all" wins over a split.
    assert main(["predict", str(run_folder), "--split", "test", "--split", "all"]) == 0
    [(recipe, folder, asked)] = calls
    assert (recipe.name, folder.path, recipe.evaluation.method) == ("r", run_folder, "exact")
    assert asked == options(run_folder / "predictions.parquet")
    said = capsys.readouterr().out.splitlines()
    assert said == summary_lines(result(asked["out"], test=0.75), "vertices")


def test_arguments_are_passed_on(run_folder: Path, tmp_path: Path, calls: list[Any]) -> None:
    out = tmp_path / "p.parquet"
    arguments = f"predict {run_folder} --out {out} --checkpoint latest --method sampled".split()
    arguments += ["--fanouts", "20,-1,5", "--split", "test", "--split", "train", "--split", "test"]
    assert main([*arguments, "--set", "run.threads=3", "--set", f"store={tmp_path}/other"]) == 0
    [(recipe, _, asked)] = calls
    assert (recipe.run.threads, recipe.store) == (3, tmp_path / "other")
    assert (recipe.evaluation.method, recipe.evaluation.fanouts) == ("sampled", (20, -1, 5))
    assert asked == options(out, checkpoint="latest", splits=("test", "train"))


def test_another_graph_and_hidden_vectors(run_folder: Path, tmp_path: Path, calls: list[Any]) -> None:
    assert main(["predict", str(run_folder), "--hidden", "--graph", "new.npz"]) == 0
    assert main(["predict", str(run_folder), "--store", "stores/new", "--fanouts", "5,5,5"]) == 0
    assert [asked for _, _, asked in calls] == [
        options(run_folder / "hidden.npy", graph=Path("new.npz"), hidden=True),
        options(run_folder / "predictions.parquet", store=Path("stores/new")),
    ]
    assert [recipe.evaluation.method for recipe, _, _ in calls] == ["exact", "sampled"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden", "--split", "test"], "leave out --split, --method"),
        (["--hidden", "--method", "sampled"], "leave out --split, --method"),
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
    assert summary_lines(result(out, validation=0.5, test=0.25), "vertices") == [
        "predicted 12000 vertices after epoch 7",
        "validation roc_auc 0.5000, test roc_auc 0.2500",
        f"{out}: 2.0 KiB",
    ]
    assert len(summary_lines(result(out), "samples")) == 2


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
    [
        (["--fanouts", "5,5,5", "--method", "exact"], "--fanouts 5,5,5 with --method exact"),
        (["--fanouts", "5,5"], "evaluation.fanouts = [5, 5] has 2 hops"),
        (["--fanouts", "5,x,5"], "[evaluation] fanouts"),
        (["--fanouts", "0,5,5"], "[evaluation] fanouts[0] = 0"),
        (["--set", "model.hiden=3"], "no key 'hiden'"),
    ],
)
def test_wrong_use_is_refused(
    run_folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["predict", str(run_folder), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not calls


def test_one_other_graph_at_a_time(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["predict", str(run_folder), "--graph", "a.npz", "--store", "b"])
    assert caught.value.code == 2
    assert "not allowed with argument --graph" in capsys.readouterr().err
