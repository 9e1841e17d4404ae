"""How far a long piece of work is: a bar on a terminal, a line now and then elsewhere; only on rank 0."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from windrow.launch.formatting import duration

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["BarProgress", "LineProgress", "Progress", "SilentProgress", "make_progress", "progress_line"]

INTERVAL_S = 10.0
"""Seconds between two lines where the output is no terminal."""


class Progress(Protocol):
    """Shows one piece of work at a time. A context manager, so that an error leaves no half-drawn bar."""

    def start(self, what: str, total: int) -> None:
        """Begin a piece of work of ``total`` units; ends the one before."""

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count finished units; ``note`` is shown behind the numbers."""

    def finish(self) -> None:
        """End the piece of work; without effect when there is none."""

    def write(self, line: str) -> None:
        """Print a line without disturbing a bar."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None: ...


def make_progress(*, rank: int, stream: TextIO | None = None) -> Progress:
    """The right display for this process.

    Args:
        rank: only rank 0 shows anything.
        stream: where to; standard output by default.
    """
    target = sys.stdout if stream is None else stream
    if rank != 0:
        return SilentProgress()
    return BarProgress(target) if target.isatty() else LineProgress(target)


class SilentProgress:
    """Shows nothing."""

    def start(self, what: str, total: int) -> None:
        """Do nothing."""

    def advance(self, units: int = 1, note: str = "") -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""

    def write(self, line: str) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


class LineProgress(SilentProgress):
    """Prints one line per interval, for log files.

    Args:
        stream: where to.
        interval_s: seconds between lines.
        clock: gives the time in seconds; another one in tests.
    """

    def __init__(
        self, stream: TextIO, *, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._what = ""
        self._total = 0
        self._done = 0
        self._started = self._printed = clock()

    def start(self, what: str, total: int) -> None:
        """Begin a piece of work. The time since the last line runs on, so short pieces print little."""
        self._what, self._total, self._done = what, total, 0
        self._started = self._clock()

    def advance(self, units: int = 1, note: str = "") -> None:
        """Count units and print a line if the interval is over."""
        self._done += units
        now = self._clock()
        if now - self._printed >= self._interval_s:
            self._printed = now
            self.write(progress_line(self._what, self._done, self._total, now - self._started, note))

    def write(self, line: str) -> None:
        """Print a line at once."""
        print(line, file=self._stream, flush=True)


class BarProgress(SilentProgress):
    """Draws a bar that vanishes when its work is done.

    Args:
        stream: a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def start(self, what: str, total: int) -> None:
        """Draw an empty bar."""
        from tqdm import tqdm

        self.finish()
        self._bar = tqdm(total=total, desc=what, file=self._stream, leave=False, dynamic_ncols=True)

    def advance(self, units: int = 1, note: str = "") -> None:
        """Lengthen the bar."""
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(units)

    def finish(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        from tqdm import tqdm

        tqdm.write(line, file=self._stream)


def progress_line(what: str, done: int, total: int, seconds: float, note: str = "") -> str:
    """One line: what, how many of how many, how fast, how long still.

    Args:
        what: name of the work.
        done: finished units.
        total: all units.
        seconds: since the start.
        note: shown at the end.
    """
    share = 100 * done / total if total else 100.0
    parts = [f"{what}: {done}/{total} ({share:.0f} %)"]
    if done and seconds > 0:
        parts.append(f"{done / seconds:.1f}/s")
        parts.append(f"{duration(max(0, total - done) * seconds / done)} left")
    return ", ".join([*parts, note] if note else parts)
