"""Peak memory: of this process, and of a stretch of work where processes share memory."""

import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["MemoryWatch", "peak_memory_bytes", "reset_peak_memory"]

RESET_PEAK = "5"
"""What the kernel takes, since Linux 4.0, as: forget the highest resident set (man 5 proc)."""

WATCH_INTERVAL_S = 0.25
"""Seconds between two looks. The kernel walks all pages of the process for one, a few milliseconds per gigabyte."""


def reset_peak_memory(clear_refs: Path = Path("/proc/self/clear_refs")) -> bool:
    """Let `peak_memory_bytes` begin anew from what this process holds now.

    Returns:
        Whether the system did so; where it is no Linux or does not permit it, the peak is that of the whole life.
    """
    try:
        clear_refs.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_memory_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The largest resident set of this process since `reset_peak_memory`; None where the system does not say.

    It counts every page of this one process that was in physical memory, whoever asked for it: libraries, data
    that other variants of a benchmark hold, memory that the allocator keeps for later. Processes that this
    one started are not in it.
    """
    return _number_of_bytes(status, "VmHWM")


def _proportional_memory_bytes() -> int | None:
    """What this process holds in physical memory now; of pages that n processes hold, one n-th.

    The sum over the processes of a job is what the job holds: a file that all of them have mapped counts once.
    """
    return _number_of_bytes(Path("/proc/self/smaps_rollup"), "Pss")


def _number_of_bytes(file: Path, key: str) -> int | None:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


class MemoryWatch:
    """Looks at what this process holds, of shared pages its part, again and again, in a thread. A context manager.

    What lives for less than `WATCH_INTERVAL_S` may be missed.
    """

    def __init__(self) -> None:
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
        now = _proportional_memory_bytes()
        if now is None:
            now = peak_memory_bytes() or 0
        with self._changing:
            self._peak_bytes = max(self._peak_bytes, now)
