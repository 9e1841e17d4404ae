"""The Python and TOML in docs/recommendation.md is right: from its log to its exported tables, everything runs."""

import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from windrow.launch.cli import main
from windrow.launch.recommendation_recipe import make_recommendation_recipe
from windrow.launch.settings import write_toml

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "recommendation.md"


def blocks(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


RECIPE, LIBFM, SEQUENCES, SELF_ATTENTION, TRANSFORMS, PLAN_FILE, PLAN_SECTION, PRETRAINED = (
    tomllib.loads(text) for text in blocks("toml")
)
WRITE_LOG, READ_SAFETENSORS, LOAD_IN_TORCHREC, WRITE_ROWS = blocks("python")


def merged(recipe: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the sections of another in the place of its own."""
    return {**recipe, **{name: {**recipe.get(name, {}), **section} for name, section in change.items()}}


def run(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    # TorchRec draws first values from torch's global generator.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # What TorchRec warns of when it is imported is not ours to cure.
        warnings.simplefilter("ignore")
        exec(compile(program, str(DOCUMENT), "exec"), names)  # the document's own programs
    return names


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document's log and recipe in a folder of their own, which is the current one, and the store."""
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path / "recipes")
    run(WRITE_LOG)
    write_toml(Path("mine.toml"), RECIPE)
    assert main(["prepare", "mine.toml"]) == 0
    return tmp_path


def train(recipe: dict[str, Any], run_folder: str) -> None:
    write_toml(Path("recipe.toml"), merged(recipe, {"run": {"threads": 1, "tensorboard": False}}))
    assert main(["train", "recipe.toml", "--run-folder", run_folder]) == 0


@pytest.mark.parametrize(
    "change", [{}, LIBFM, SEQUENCES, SELF_ATTENTION, TRANSFORMS, PLAN_SECTION, PRETRAINED]
)
def test_recipes_are_accepted(change: dict[str, Any], tmp_path: Path) -> None:
    values = {"name": "mine", **merged(RECIPE, change)}
    make_recommendation_recipe(values, source="recommendation.md", base=tmp_path)


def test_the_plan_fits(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_toml(Path("plan.toml"), PLAN_FILE)
    write_toml(Path("planned.toml"), merged(RECIPE, PLAN_SECTION))
    assert main(["plan", "planned.toml", "--ranks", "2"]) == 0
    assert re.search(r"user .* grid .*\n.*item .* table-wise", capsys.readouterr().out)


def test_tables_come_out_and_go_in(prepared: Path) -> None:
    train(RECIPE, "runs/mine-1")
    assert main(["export", "runs/mine-1", "--out", "runs/tables.safetensors"]) == 0
    assert main(["export", "runs/mine-1", "--format", "torchrec", "--out", "runs/tables.pt"]) == 0
    first_values = run(READ_SAFETENSORS)["first_values"]
    names = run(LOAD_IN_TORCHREC)
    item = names["collection"].embedding_bags["item"].weight
    assert set(names["collection"].embedding_bags) == {"user", "item"}
    assert first_values.equal(item[2:5])
    run(WRITE_ROWS)
    train(merged(RECIPE, PRETRAINED), "runs/mine-2")


@pytest.mark.parametrize("change", [SEQUENCES, SELF_ATTENTION, TRANSFORMS])
def test_it_trains_so_too(prepared: Path, change: dict[str, Any]) -> None:
    train(merged(RECIPE, change), "runs/mine-1")
    assert (prepared / "recipes" / "runs" / "mine-1" / "summary.json").is_file()
