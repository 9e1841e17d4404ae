"""windrow.launch.commands.completion: what bash and zsh make of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from windrow.launch.cli import COMMANDS, main

ASK = """
source ./script
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_windrow
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["windrow", ""], set(COMMANDS)),
        (["windrow", "tr"], {"train"}),
        (["windrow", "train", "--res"], {"--resume"}),
        (["windrow", "train", "c"], {"cora.toml", "clicks"}),
        (["windrow", "report", "c"], {"cora.toml", "clicks", "c.txt"}),
        (["windrow", "generate-log", "out", "--order", ""], {"time", "sessions"}),
    ],
    ids=lambda words: words[-1] if isinstance(words, list) else "",
)
def test_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], offered: set[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    for name in ("cora.toml", "c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "clicks").mkdir()
    ask = ASK.format(words=" ".join(f"'{word}'" for word in words), last=len(words) - 1)
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
    assert set(done.stdout.split()) == offered


def test_zsh_gets_recipes_and_one_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    printed = capsys.readouterr().out
    assert "_files -g '(*.toml)'" in printed
    assert "train:'train a model on a partitioned graph or a prepared log'" in printed
