"""Peak memory: of this process, and of a stretch of work where processes share memory."""

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["MemoryWatch", "peak_memory_bytes", "proportional_memory_bytes", "reset_peak_memory"]

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What the kernel takes, since Linux 4.0, as: forget the highest resident set (man 5 proc)."""

PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def reset_peak_memory(clear_refs: Path = CLEAR_REFS) -> bool:
    """Let `peak_memory_bytes` begin anew from what this process holds now.

    Returns:
        Whether the system did so; where it is no Linux or does not permit it, the peak is that of the whole life.
    """
    try:
        clear_refs.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_memory_bytes(status: Path = STATUS) -> int | None:
    """The largest resident set of this process since `reset_peak_memory`; None where the system does not say.

    It counts every page of this one process that was in physical memory, whoever asked for it: libraries, data
    that other variants of a benchmark hold, memory that the allocator keeps for later. Processes that this
    one started are not in it.
    """
    try:
        found = PEAK.search(status.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


ROLLUP = Path("/proc/self/smaps_rollup")
PROPORTIONAL = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)

WATCH_INTERVAL_S = 0.25
"""Seconds between two looks. The kernel walks all pages of the process for one, a few milliseconds per gigabyte."""


def proportional_memory_bytes(rollup: Path = ROLLUP) -> int | None:
    """What this process holds in physical memory now; of pages that n processes hold, one n-th.

    The sum over the processes of a job is what the job holds: a file that all of them have mapped counts once.

    Args:
        rollup: the kernel's file that says so, since Linux 4.14.

    Returns:
        Bytes; None where the system does not say.
    """
    try:
        found = PROPORTIONAL.search(rollup.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class MemoryWatch:
    """Looks at `proportional_memory_bytes` again and again, in a thread. A context manager.

    What lives for less than `WATCH_INTERVAL_S` may be missed.
    """

    def __init__(self) -> None:
        """Do nothing yet."""
        self._peak_bytes = 0
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()

    def take_peak_bytes(self) -> int:
        """The most since this was last asked, or since the start; where the system does not say, `peak_memory_bytes`.

        Returns:
            Bytes; 0 where the system says neither.
        """
        self._look()
        with self._changing:
            peak, self._peak_bytes = self._peak_bytes, 0
        return peak

    def _run(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        now = proportional_memory_bytes()
        if now is None:
            now = peak_memory_bytes() or 0
        with self._changing:
            self._peak_bytes = max(self._peak_bytes, now)
