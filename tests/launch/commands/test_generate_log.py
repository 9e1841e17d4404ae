"""windrow.launch.commands.generate_log: from the command line to a log and a recipe that training takes."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from windrow.launch.cli import main
from windrow.launch.recommendation_recipe import load_recommendation_recipe


def generate(log: Path, *arguments: str) -> int:
    return main(["generate-log", str(log), "--length-scale", "0.05", "--rows-scale", "0.001", *arguments])


def test_a_log_and_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, recipe = tmp_path / "logs" / "a.parquet", tmp_path / "recipes" / "a.toml"
    assert generate(log, "--samples", "500", "--recipe", str(recipe)) == 0
    said = capsys.readouterr().out
    assert "500 samples, 16.5 to a session" in said
    assert str(recipe) in said
    assert parquet.read_metadata(log).num_rows == 500
    loaded = load_recommendation_recipe(recipe)
    assert [path.resolve() for path in loaded.log.paths] == [log]
    assert set(loaded.log.features) | set(loaded.log.dense) <= set(parquet.read_schema(log).names)
    assert ("cart_items", "cart_sellers") in loaded.deduplication.groups

    first = log.read_bytes()
    assert generate(log, "--samples", "500") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert generate(log, "--samples", "500", "--overwrite") == 0
    assert log.read_bytes() == first
    assert generate(log, "--samples", "500", "--overwrite", "--seed", "1") == 0
    assert log.read_bytes() != first


def test_what_is_generated_can_be_learnt(tmp_path: Path) -> None:
    recipe = tmp_path / "a.toml"
    assert generate(tmp_path / "a.parquet", "--samples", "20000", "--recipe", str(recipe)) == 0
    assert main(["prepare", str(recipe)]) == 0
    small = (
        "training.batch_size=512",
        "tables.dim=8",
        "model.bottom=[16]",
        "model.top=[32]",
        f"run.folder={tmp_path}/run",
    )
    settings = [argument for setting in small for argument in ("--set", setting)]
    assert main(["train", str(recipe), *settings]) == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["validation"] > 0.6


def test_a_recipe_does_not_take_the_place_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.parquet"
    (tmp_path / "link").symlink_to(log)
    for recipe in (log, tmp_path / ".." / tmp_path.name / "a.parquet", tmp_path / "link"):
        assert generate(log, "--samples", "50", "--overwrite", "--recipe", str(recipe)) == 2
        assert "is the log itself" in capsys.readouterr().err
        assert not log.exists()


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--samples", "0"], "--samples 0"), (["--rows-scale", "-1"], "rows_scale = -1")]
)
def test_wrong_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert generate(tmp_path / "a.parquet", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
