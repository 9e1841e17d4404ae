"""Which processes are there: what a job has started, and what is left of it. Linux only."""

from pathlib import Path

__all__ = ["family", "is_alive"]

ZOMBIE = "Z"
"""State of a process that has ended and whose parent has not asked for its status yet."""


def family(process: int) -> set[int]:
    """Living processes that descend from one, that one among them; empty where it is not alive.

    Args:
        process: its number.
    """
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _living_parent(int(entry.name))
            if parent is not None:
                parents[int(entry.name)] = parent
    found = {process} & parents.keys()
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def is_alive(process: int) -> bool:
    """Whether a process is there and not a zombie.

    Args:
        process: its number.
    """
    return _living_parent(process) is not None


def _living_parent(process: int) -> int | None:
    """Number of the parent of a process that is alive; None for one that is not."""
    try:
        # The name of the program, in brackets, may hold anything.
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == ZOMBIE else int(parent)
