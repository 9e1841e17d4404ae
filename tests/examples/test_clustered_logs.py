"""What docs/clustered-logs.md says runs: its log, its command, its recipe, and training from it."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from pyarrow import parquet

from windrow.launch.cli import main
from windrow.launch.settings import write_toml
from windrow.recsys.log.store import LogStore

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "clustered-logs.md"


def blocks(language: str) -> list[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_a_log_is_clustered_and_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,), (command,), (recipe,) = blocks("python"), blocks("bash"), blocks("toml")
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path / "recipes")
    exec(compile(program, str(DOCUMENT), "exec"), {})  # the document's own program
    assert main(shlex.split(command)[1:]) == 0
    assert "6000 rows of 400 sessions, 15.00 rows to a session" in capsys.readouterr().out
    before, after = Path("clicks.parquet"), Path("clustered/clicks/part-00000.parquet")
    assert parquet.read_schema(before) == parquet.read_schema(after)
    assert after.stat().st_size < before.stat().st_size
    write_toml(Path("clicks.toml"), tomllib.loads(recipe))
    assert main(["prepare", "clicks.toml"]) == 0
    store = LogStore.open(tmp_path / "stores" / "clicks", verify=True)
    assert store.manifest.order == "sessions"
    assert store.split("train").rows == 4800
