"""What docs/deduplication.md and docs/session-logs.md say runs: commands, recipe lines and the program."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from windrow.launch.cli import main
from windrow.launch.settings import read_toml, write_toml
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.log.store import LogStore

DOCUMENTS = Path(__file__).resolve().parent.parent.parent / "docs"
DEDUPLICATION, SESSION_LOGS = DOCUMENTS / "deduplication.md", DOCUMENTS / "session-logs.md"


def blocks(document: Path, language: str) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(document: Path) -> list[list[str]]:
    """The words after ``windrow``, without mpirun: one rank does the same."""
    lines = "".join(blocks(document, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("windrow") + 1 :] for line in words if "windrow" in line]


def with_fewer_samples(command: list[str]) -> list[str]:
    """Large logs take long."""
    if command[0] == "train":
        small = ("model.bottom=[8]", "model.top=[8]", "tables.dim=4", "run.tensorboard=false")
        return [*command, *(word for setting in small for word in ("--set", setting))]
    if command[0] != "generate-log":
        return command
    place = command.index("--samples") + 1
    scales = ["--length-scale", "0.1", "--rows-scale", "0.001"]
    return [*command[:place], "6000", *command[place + 1 :], *scales]


def test_what_the_guide_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stores").mkdir()
    done = [command[0] for command in commands(DEDUPLICATION)]
    assert done == ["generate-log", "prepare", "groups", "explain", "prepare", "train"]
    for command in commands(DEDUPLICATION):
        assert main(with_fewer_samples(command)) == 0
        if command[0] == "groups":
            assert "groups = [[" in capsys.readouterr().out
    assert LogStore.open(tmp_path / "stores" / "visits").manifest.order == "sessions"


def test_what_the_page_of_generated_logs_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stores").mkdir()
    first = commands(SESSION_LOGS)[:3]
    assert [command[0] for command in first] == ["generate-log", "prepare", "train"]
    for command in first:
        assert main(with_fewer_samples(command)) == 0
    assert read_toml(tmp_path / "stores" / "generated.toml")["deduplication"]["groups"]


def test_lines_of_the_recipe(tmp_path: Path) -> None:
    (text,) = blocks(DEDUPLICATION, "toml")
    write_toml(tmp_path / "r.toml", tomllib.loads(text))
    values = tomllib.loads(text)["deduplication"]
    groups = tuple(tuple(group) for group in values["groups"])
    assert DeduplicationOptions(groups=groups, cluster=values["cluster"]).read_groups() == groups


def test_the_program_runs() -> None:
    (program,) = blocks(DEDUPLICATION, "python")
    exec(compile(program, str(DEDUPLICATION), "exec"), {})  # the document's own program
