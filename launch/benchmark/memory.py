"""The most memory that this process has held, and a way to begin anew."""

import re
from pathlib import Path

__all__ = ["peak_memory_bytes", "reset_peak_memory"]

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What the kernel takes, since Linux 4.0, as: forget the highest resident set (man 5 proc)."""

PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def reset_peak_memory(clear_refs: Path = CLEAR_REFS) -> bool:
    """Let `peak_memory_bytes` begin anew from what this process holds now.

    Args:
        clear_refs: the kernel's file for it.

    Returns:
        Whether the system did so; False where it is no Linux or does not permit it. The peak is then that of
        the process's whole life.
    """
    try:
        clear_refs.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_memory_bytes(status: Path = STATUS) -> int | None:
    """The largest resident set of this process since `reset_peak_memory`.

    It counts every page of this one process that was in physical memory, whoever asked for it: libraries, data
    that other variants of a benchmark hold, memory that the allocator keeps for later. Processes that this
    one started are not in it.

    Args:
        status: the kernel's file that says so.

    Returns:
        Bytes; None where the system does not say.
    """
    try:
        found = PEAK.search(status.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
