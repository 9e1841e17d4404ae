"""Text for people: progress bars, tables with aligned columns, and numbers with units.

Progress is a bar on a terminal and a line now and then elsewhere, and only on rank 0. What a rank prints goes through
a pipe to its launcher, so that under mpirun the launcher's terminal counts.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from windrow.comm.launcher import launched_size, launchers_output

__all__ = [
    "BarProgress",
    "LineProgress",
    "Progress",
    "byte_size",
    "count",
    "duration",
    "make_progress",
    "table",
    "terminal_columns",
]

LINE = "{desc}: {n_fmt}/{total_fmt} ({percentage:.0f} %), {rate_noinv_fmt}, {remaining} left"
INTERVAL_S = 10.0
"""Seconds between two lines where the output is no terminal."""

COMPILING = "about 10 s"
"""On two cores of 2024; a command needs some 20 of the kernels."""

USUAL_COLUMNS = 80
"""Of a terminal that does not say."""


def terminal_columns(stream: TextIO) -> int | None:
    """How wide the terminal is that a stream ends up on, standard output of a rank too; None where that is none.

    WINDROW_PROGRESS=on counts every stream as a terminal, for launchers on another machine; =off none.
    """
    wanted = os.environ.get("WINDROW_PROGRESS")
    if wanted == "off":
        return None
    if stream.isatty():
        return _columns(stream)
    output = launchers_output() if launched_size() > 1 and stream is sys.__stdout__ else None
    with contextlib.suppress(OSError):
        if output is not None and output.is_char_device():
            with output.open() as launchers:
                if launchers.isatty():
                    return _columns(launchers)
    return USUAL_COLUMNS if wanted == "on" else None


def _columns(terminal: TextIO) -> int:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(terminal.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


SHARES = 1000
"""Units of a progress bar over a share from 0 to 1."""


class Progress:
    """Shows one piece of work at a time; this base shows nothing. A context manager, so that an error leaves no bar."""

    _stage = ""
    _shown = 0

    def start(self, what: str, total: int) -> None:
        """Begin a piece of work of ``total`` units; ends the one before."""

    def advance(self, units: int = 1) -> None:
        """Count finished units."""

    def finish(self) -> None:
        """End the piece of work; without effect when there is none."""

    def write(self, line: str) -> None:
        """Print a line without disturbing a bar."""

    def report(self, stage: str, share: float) -> None:
        """Show that a share of a stage, 0 to 1 and never less than before, is done; a new name begins a new bar."""
        if stage != self._stage:
            self.start(stage, SHARES)
            self._stage, self._shown = stage, 0
        units = round(share * SHARES)
        self.advance(units - self._shown)
        self._shown = units

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


@contextlib.contextmanager
def make_progress(*, rank: int, stream: TextIO | None = None) -> Iterator[Progress]:
    """The right display for this process: only rank 0 shows anything; on standard output by default.

    While it is open it also says so, once, when kernels are compiled.
    """
    if rank != 0:
        yield Progress()
        return
    target = sys.stdout if stream is None else stream
    with (
        BarProgress(target) if terminal_columns(target) else LineProgress(target) as progress,
        _telling_of_compilation(progress.write),
    ):
        yield progress


@contextlib.contextmanager
def _telling_of_compilation(say: Callable[[str], None]) -> Iterator[None]:
    from numba.core import event

    class Notice(event.Listener):
        def __init__(self) -> None:
            self.said = False

        def on_start(self, event: Any) -> None:
            kernel = event.data["dispatcher"]
            if self.said or not kernel.py_func.__module__.startswith("windrow."):
                return
            self.said = True
            folder = Path(kernel.stats.cache_path)
            kept = folder.parent.parent if folder.name == "__pycache__" else folder.parent
            say(f"compiling kernels for this machine: {COMPILING}, once; kept in {kept}")

        def on_end(self, event: Any) -> None:
            """Nothing is to be said then."""

    with event.install_listener("numba:compile", Notice()):
        yield


class LineProgress(Progress):
    """Prints one line per interval, for log files."""

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

    def advance(self, units: int = 1) -> None:
        """Count units and print a line if the interval is over."""
        self._done += units
        now = self._clock()
        if now - self._printed >= self._interval_s:
            self._printed = now
            from tqdm import tqdm

            seconds = now - self._started
            self.write(tqdm.format_meter(self._done, self._total, seconds, prefix=self._what, unit="", bar_format=LINE))

    def write(self, line: str) -> None:
        """Print a line at once."""
        print(line, file=self._stream, flush=True)


class BarProgress(Progress):
    """Draws a bar on a terminal, which vanishes when its work is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def start(self, what: str, total: int) -> None:
        """Draw an empty bar."""
        from tqdm import tqdm

        self.finish()
        self._bar = tqdm(total=total, desc=what, file=self._stream, leave=False, ncols=terminal_columns(self._stream))

    def advance(self, units: int = 1) -> None:
        """Lengthen the bar."""
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


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Lay out rows, dictionaries with the same keys, which become the header, as text.

    Numbers stand to the right (floats with four significant digits; "-" for None), the rest to the left.
    """
    if not rows:
        return "(no rows)"
    header = list(rows[0])
    cells = [[_cell(row.get(name, "")) for name in header] for row in rows]
    widths = [max(len(line[i]) for line in [header, *cells]) for i in range(len(header))]
    numeric = [all(_is_number(row.get(name, 0)) for row in rows) for name in header]
    lines = [header, ["-" * width for width in widths], *cells]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
COUNT_UNITS = ("", "k", "M", "G", "T")


def byte_size(num_bytes: float) -> str:
    """A number of bytes with a binary unit: ``1.5 MiB``."""
    return _scaled(num_bytes, 1024.0, BYTE_UNITS, " ")


def count(number: float) -> str:
    """A count with a decimal unit and three digits: ``12.3k``."""
    return _scaled(number, 1000.0, COUNT_UNITS, "")


def duration(seconds: float) -> str:
    """A time span: ``8.25 s`` below a minute, ``3:07`` below an hour, else ``2:03:07``."""
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _scaled(number: float, base: float, units: tuple[str, ...], gap: str) -> str:
    power = 0
    while power < len(units) - 1 and abs(number) >= 999.5:
        number /= base
        power += 1
    text = f"{number:.0f}" if power == 0 or abs(number) >= 99.95 else f"{number:.1f}"
    return f"{text}{gap}{units[power]}"
