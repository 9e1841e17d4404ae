"""windrow.launch.terminal: what appears where."""

import io

import pytest

from windrow.launch.terminal import (
    BarProgress,
    LineProgress,
    SilentProgress,
    make_progress,
    progress_line,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_display_follows_rank_and_stream() -> None:
    assert isinstance(make_progress(rank=0, stream=Terminal()), BarProgress)
    assert isinstance(make_progress(rank=0, stream=io.StringIO()), LineProgress)
    assert type(make_progress(rank=1, stream=Terminal())) is SilentProgress
    assert isinstance(make_progress(rank=0), LineProgress)


def test_lines_come_once_per_interval() -> None:
    stream, clock = io.StringIO(), Clock()
    with LineProgress(stream, interval_s=10, clock=clock) as progress:
        progress.start("epoch 1", 100)
        for _ in range(100):
            clock.now += 0.5
            progress.advance(note="loss 0.5")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "epoch 1: 20/100 (20 %), 2.0/s, 40.00 s left, loss 0.5"


def test_the_interval_runs_across_short_pieces_of_work() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = LineProgress(stream, interval_s=10, clock=clock)
    for epoch in range(30):
        progress.start(f"epoch {epoch}", 1)
        clock.now += 1
        progress.advance()
    assert len(stream.getvalue().splitlines()) == 3


def test_a_bar_is_drawn_and_vanishes() -> None:
    stream = Terminal()
    with BarProgress(stream) as progress:
        progress.start("epoch 1", 2)
        progress.advance(note="loss 0.5")
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


def test_silence() -> None:
    with SilentProgress() as progress:
        progress.start("x", 1)
        progress.advance(1, "note")
        progress.write("line")


def test_progress_line_at_the_edges() -> None:
    assert progress_line("x", 0, 10, 0.0) == "x: 0/10 (0 %)"
    assert progress_line("x", 0, 0, 1.0) == "x: 0/0 (100 %)"
    assert progress_line("x", 10, 10, 5.0) == "x: 10/10 (100 %), 2.0/s, 0.00 s left"
