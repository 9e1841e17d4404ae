"""How many remote rows to keep where the user says how much memory there is, and not how many rows."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["GIB_BYTES", "automatic_capacities", "rows_that_fit", "rows_worth_keeping"]

GIB_BYTES = 1 << 30

NEARLY_ALL = 0.9
"""Share of the remote rows from which on keeping the rest too is better: filling the caches then takes at most a ninth
longer, and ranks that hold every row need no exchange at all, not even one that says that nothing is asked for."""


def rows_that_fit(memory_gib: float, row_bytes: int) -> int:
    """Rows that a memory budget has room for.

    Args:
        memory_gib: the budget, in units of 2**30 bytes.
        row_bytes: of one row as it is kept.
    """
    return int(memory_gib * GIB_BYTES) // row_bytes


def rows_worth_keeping(
    total: npt.NDArray[np.float64], own: tuple[int, int], *, steps: int, epochs: int
) -> int:
    """Remote rows that spare more transfers than they cost.

    A kept row travels once, before training. One that is not kept travels ``steps * epochs * p`` times in expectation.
    So keeping it pays where that is above 1. More rows never make training slower, but beyond this they would cost
    more traffic than they save.

    Args:
        total: float64 [N], probability p of each vertex to be among the input rows of one minibatch.
        own: first id of the rank's own vertices, and the one after its last.
        steps: minibatches in an epoch.
        epochs: of the whole run.

    Returns:
        How many vertices outside `own` have ``steps * epochs * p > 1``.
    """
    least = 1.0 / (steps * epochs)
    paying = total > least
    return int(paying.sum() - paying[slice(*own)].sum())


def automatic_capacities(
    worthwhile: Sequence[int], remote: Sequence[int], row_bytes: int, memory_gib: float
) -> list[int]:
    """Rows that each rank keeps where the recipe says ``cache.alpha = "auto"``.

    Those that are worth keeping, the best first, until the memory is full; every remote row where that is nearly all
    of them and fits.

    Args:
        worthwhile: of each rank, what `rows_worth_keeping` gives.
        remote: of each rank, how many vertices the others own.
        row_bytes: of one row as it is kept.
        memory_gib: the most memory of a rank for them, in units of 2**30 bytes.
    """
    affordable = rows_that_fit(memory_gib, row_bytes)
    if max(remote) <= affordable and sum(worthwhile) >= NEARLY_ALL * sum(remote):
        return list(remote)
    return [min(rows, affordable) for rows in worthwhile]
