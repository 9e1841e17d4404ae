"""windrow.launch.commands.prepare: from the command line to a store."""

import shutil
import subprocess
from pathlib import Path

import pytest

from windrow.comm.launcher import launched_size
from windrow.launch.cli import main
from windrow.launch.settings import write_toml
from windrow.recsys.log.store import LogStore


def write_recipe(folder: Path, log: str) -> Path:
    (folder / "log.csv").write_text(log)
    recipe = folder / "r.toml"
    write_toml(
        recipe,
        {
            "store": "stores/a",
            "log": {"paths": ["*.csv"], "format": "csv", "features": {"word": {"min_count": 1}}},
            "split": {"by": "hash", "fractions": [1.0, 0.0, 0.0]},
        },
    )
    return recipe


def test_a_log_becomes_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path, "label,word\n0,a\n1,b\n0,\n")
    assert main(["prepare", str(recipe)]) == 0
    said = capsys.readouterr().out
    for words in ("base rate", "word", "prepared in"):
        assert words in said
    store = LogStore.open(tmp_path / "stores" / "a", verify=True)
    assert store.table_rows() == {"word": 4}
    assert main(["prepare", str(recipe)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["prepare", str(recipe), "--overwrite", "--set", "log.features.word.min_count=2"]) == 0
    assert LogStore.open(tmp_path / "stores" / "a").table_rows() == {"word": 2}


@pytest.mark.skipif(launched_size() > 1, reason="starts mpirun itself")
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_ranks_share_out_the_files(tmp_path: Path, windrow_that_frees: list[str]) -> None:
    recipe = write_recipe(tmp_path, "label,word\n0,a\n1,b\n0,\n")
    (tmp_path / "more.csv").write_text("label,word\n0,b\n1,c\n")
    command = ["mpirun", "-n", "2", *windrow_that_frees, "prepare", str(recipe)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("prepared in") == 1
    store = LogStore.open(tmp_path / "stores" / "a", verify=True)
    assert store.vocabulary("word")["value"].to_pylist() == ["b", "a", "c"]
    assert [file.name for file in store.split("train").files] == ["part-00000.parquet", "part-00001.parquet"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 2
    assert again.stderr.count("already exists") == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["log.label=click"], "there is no column 'click'; the columns are label, word"),
        (["log.features.word.rows=1"], "rows = 1: expected at least 2"),
        (["split.fractions=[0.5, 0.5, 0.0]", "split.seed=1"], "the validation split has no samples"),
        (["log.paths=['absent.csv']"], "absent.csv: no such file"),
        (["log.feature.word.rows=3"], "Did you mean 'features'"),
    ],
)
def test_wrong_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], words: str
) -> None:
    recipe = write_recipe(tmp_path, "label,word\n0,a\n")
    arguments = [argument for override in overrides for argument in ("--set", override)]
    assert main(["prepare", str(recipe), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "stores" / "a").exists()


def test_a_graph_is_not_prepared(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(repository / "examples" / "cora.toml")]) == 2
    assert "windrow partition prepares it" in capsys.readouterr().err


def test_open_bandit(repository: Path, tmp_path: Path) -> None:
    recipe = repository / "examples" / "open_bandit.toml"
    assert main(["prepare", str(recipe), "--set", f"store={tmp_path / 'store'}"]) == 0
    store = LogStore.open(tmp_path / "store")
    assert [store.split(name).rows for name in store.splits] == [32_000, 4_000, 4_000]
    assert store.table_rows()["campaign"] == 6
