"""windrow.training.terminal: bars and lines, tables, numbers with units."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.training.terminal import (
    BarProgress,
    LineProgress,
    Progress,
    byte_size,
    count,
    duration,
    make_progress,
    table,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("rank", "stream", "wanted", "display"),
    [
        (0, Terminal(), None, BarProgress),
        (0, Terminal(), "off", LineProgress),
        (0, io.StringIO(), None, LineProgress),
        (0, io.StringIO(), "on", BarProgress),
        (0, None, None, LineProgress),
        (1, Terminal(), "on", Progress),
    ],
)
def test_the_display_follows_rank_stream_and_environment(
    monkeypatch: pytest.MonkeyPatch, rank: int, stream: io.StringIO | None, wanted: str | None, display: type[Progress]
) -> None:
    if wanted:
        monkeypatch.setenv("WINDROW_PROGRESS", wanted)
    with make_progress(rank=rank, stream=stream) as progress:
        assert type(progress) is display


UNDER_MPIRUN = """
import sys
from windrow.comm.launcher import launched_rank
from windrow.training.terminal import terminal_columns
if launched_rank() == 0:
    print(terminal_columns(sys.stdout))
"""


@pytest.mark.parametrize(("piped", "columns"), [("", "70"), (" | cat", "None")])
def test_under_mpirun_the_launchers_terminal_counts(tmp_path: Path, piped: str, columns: str) -> None:
    if shutil.which("script") is None or shutil.which("stty") is None:
        pytest.skip("no script and stty to make a terminal with")
    (tmp_path / "ask.py").write_text(UNDER_MPIRUN)
    command = f"stty cols 70; mpirun -n 2 {sys.executable} -P {tmp_path}/ask.py{piped}"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == [columns]


def test_compiling_is_said_once_and_where_the_code_is_kept(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from windrow.comm.rows import group_by_owner\n"
        "from windrow.training.terminal import make_progress\n"
        "with make_progress(rank=0):\n"
        "    group_by_owner(torch.tensor([3, 1]), torch.tensor([0, 2, 4]))  # two kernels\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", program]
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment).stdout
        for _ in range(2)
    ]
    assert printed == [f"compiling kernels for this machine: about 10 s, once; kept in {tmp_path}\n", ""]


def test_lines_come_once_per_interval() -> None:
    stream, clock = io.StringIO(), Clock()
    with LineProgress(stream, interval_s=10, clock=clock) as progress:
        progress.start("epoch 1", 100)
        for _ in range(100):
            clock.now += 0.5
            progress.advance()
        for epoch in range(30):  # the interval runs across short pieces of work
            progress.start(f"epoch {epoch}", 1)
            clock.now += 1
            progress.advance()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5 + 3
    assert lines[0] == "epoch 1: 20/100 (20 %),  2.00/s, 00:40 left"


def test_a_bar_is_drawn_and_vanishes() -> None:
    stream = Terminal()
    with BarProgress(stream) as progress:
        progress.start("epoch 1", 2)
        progress.advance()
        progress.write("a line")
        progress.advance()
    text = stream.getvalue()
    assert "epoch 1" in text
    assert "a line\n" in text
    assert text.split("\r")[-1].strip() == ""


def test_a_bar_is_removed_when_an_error_passes() -> None:
    stream = Terminal()

    def fail() -> None:
        with BarProgress(stream) as progress:
            progress.start("work", 2)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fail()
    assert stream.getvalue().split("\r")[-1].strip() == ""


class Recorder(Progress):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def start(self, what: str, total: int) -> None:
        self.seen.append((what, total))

    def advance(self, units: int = 1, note: str = "") -> None:
        self.seen.append(("", units))


def test_stages_follow_one_another() -> None:
    recorder = Recorder()
    for stage, share in (("reading", 0.25), ("reading", 1.0), ("writing", 0.0), ("writing", 0.5)):
        recorder.report(stage, share)
    assert recorder.seen == [("reading", 1000), ("", 250), ("", 750), ("writing", 1000), ("", 0), ("", 500)]


def test_table_aligns_numbers_right_and_text_left() -> None:
    rows = [{"name": "a", "seconds": 1.23456, "rows": 3}, {"name": "longer", "seconds": 12.5, "rows": 1234}]
    assert table(rows).splitlines() == [
        "name    seconds  rows",
        "------  -------  ----",
        "a         1.235     3",
        "longer     12.5  1234",
    ]
    assert table([]) == "(no rows)"


def test_one_word_makes_a_column_text() -> None:
    assert table([{"n": 1}, {"n": "none"}]).splitlines() == ["n", "----", "1", "none"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (200 << 30, "200 GiB")],
)
def test_byte_size(num_bytes: int, text: str) -> None:
    assert byte_size(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1.0k"), (12345, "12.3k"), (5e20, "500000000T")]
)
def test_count(number: float, text: str) -> None:
    assert count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 s"), (8.254, "8.25 s"), (59.99, "59.99 s"), (59.999, "1:00"), (187, "3:07"), (7387, "2:03:07")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
