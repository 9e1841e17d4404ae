"""Which remote rows a rank keeps, and how many: cache options, capacity, expected traffic.

A vertex that is among the input rows of a minibatch with probability p (`windrow.caching.vip`) is so in ``steps * p``
minibatches of an epoch, in expectation. So the rows that travel are a sum over the remote vertices that are not kept::

    ranking   best [ 7  2  9  4 ] worst       total  .9 .5 .2 .1        steps 10
    kept                  0    1    2    3    4
    rows an epoch        17    8    3    1    0
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from windrow.comm.options import NonNegativeFloat, NonNegativeInt, Share, checked_dataclass

__all__ = [
    "GIB_BYTES",
    "CacheOptions",
    "PolicyName",
    "automatic_capacities",
    "cache_capacity",
    "choose_cached",
    "expected_remote_rows",
    "least_that_suffices",
    "rows_that_fit",
    "rows_worth_keeping",
]

PolicyName = Literal["vip", "degree", "reachable-degree", "halo", "paths", "reverse-pagerank", "simulation"]
"""What remote vertices are ranked by; see `windrow.caching.policies`."""


@checked_dataclass
class CacheOptions:
    """Which rows of other ranks are kept on this one as well. The answer does not depend on it."""

    alpha: NonNegativeFloat | Literal["auto"] = "auto"
    """Replication factor: every rank keeps floor(alpha * N / ranks) remote rows, so memory for features grows to
    1 + alpha times. "auto": as much as pays and fits into `memory_gib`."""

    policy: PolicyName = "vip"
    """What remote vertices are ranked by."""

    memory_gib: NonNegativeFloat = 1.0
    """Most memory of a rank for remote rows, in GiB (2**30 bytes), where alpha is "auto"; that of the GPU, where one
    trains. The index of the rows comes on top, in memory of the host: 4 bytes for each vertex of the graph."""

    window: NonNegativeInt = 0
    """Minibatches that are sampled further ahead, so that the cache, instead of staying as it was filled, keeps of all
    remote rows that come by those that are needed soonest. 0: it stays. The index takes 16 bytes more a vertex."""

    shared_memory: bool = True
    """Whether the ranks of a host read each other's rows where they stand, in memory that all of them map, so that none
    of these travel or are kept twice. Rows of other hosts travel all the same. Not where a GPU trains."""

    gpu_share: Share = 1.0
    """Share of a rank's own rows that is kept in GPU memory, those that are needed most first; the rest waits in
    page-locked memory of the host. Means nothing on a CPU."""


def cache_capacity(alpha: float, num_vertices: int, num_parts: int) -> int:
    """Remote rows that each of K ranks keeps: floor(alpha * N / K), as in SALIENT++ (Kaler et al., MLSys 2023).

    At most N: more rows there are not.
    """
    # Decimals such as 0.29 lie a rounding below what was written, and would lose a row where the product is whole.
    exact = alpha * num_vertices / num_parts
    return min(num_vertices, math.floor(exact + 1e-9 * max(1.0, exact)))


def choose_cached(scores: npt.NDArray[np.float64], own: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Rank the remote vertices to keep: int64 ids, of which a cache with room for n rows holds the first n.

    Of `scores` [N] the highest comes first, of equal ones the lower id; vertices with 0 or less are left out, and those
    that the rank holds anyway, from `own[0]` to before `own[1]`.
    """
    wanted = scores > 0
    wanted[own[0] : own[1]] = False
    candidates = np.flatnonzero(wanted)
    return candidates[np.argsort(-scores[candidates], kind="stable")]


GIB_BYTES = 1 << 30

NEARLY_ALL = 0.9
"""Share of the remote rows from which on keeping the rest too is better: filling the caches then takes at most a ninth
longer, and ranks that hold every row need no exchange at all, not even one that says that nothing is asked for."""


def rows_that_fit(memory_gib: float, row_bytes: int) -> int:
    """Rows of `row_bytes` each that a memory budget in GiB (2**30 bytes) has room for."""
    return int(memory_gib * GIB_BYTES) // row_bytes


def rows_worth_keeping(total: npt.NDArray[np.float64], own: tuple[int, int], *, steps: int, epochs: int) -> int:
    """Remote rows that spare more transfers than they cost.

    A kept row travels once, before training; one that is not kept ``steps * epochs * p`` times in expectation, p its
    probability `total` [N] to be among the input rows of one of the `steps` minibatches of an epoch. So keeping it pays
    where that is above 1: this counts such vertices outside `own`, from its first id to before its second.
    """
    paying = total > 1.0 / (steps * epochs)
    return int(paying.sum() - paying[slice(*own)].sum())


def automatic_capacities(
    worthwhile: Sequence[int], remote: Sequence[int], row_bytes: int, memory_gib: float
) -> list[int]:
    """Rows that each rank keeps where the recipe says ``cache.alpha = "auto"``.

    Of each rank's `worthwhile` rows (`rows_worth_keeping`) the best ones, until `memory_gib` is full of rows of
    `row_bytes`; all `remote` rows, those that others own, where nearly all of them pay and all fit.
    """
    affordable = rows_that_fit(memory_gib, row_bytes)
    if max(remote) <= affordable and sum(worthwhile) >= NEARLY_ALL * sum(remote):
        return list(remote)
    return [min(rows, affordable) for rows in worthwhile]


def expected_remote_rows(
    total: npt.NDArray[np.float64],
    ranking: npt.NDArray[np.int64],
    offsets: Sequence[int],
    part: int,
    capacities: npt.ArrayLike,
    *,
    steps: int,
) -> npt.NDArray[np.float64]:
    """Rows that a part asks each owner for in an epoch of so many `steps`, for several sizes of its cache.

    `total` [N] is the probability of each vertex to be among the input rows of one minibatch of the part, `ranking` [n]
    the remote vertices, that which is kept first at the front; others never are. `capacities` [C] are numbers of rows
    kept, in any order. Part p owns the ids from offsets[p] to offsets[p + 1].

    Returns:
        float64 [C, parts]; the part's own column is 0. Never more for a larger capacity, and exactly 0 where every
        vertex that can be asked for is kept.
    """
    num_parts = len(offsets) - 1
    kept = np.minimum(np.asarray(capacities, dtype=np.int64), len(ranking))
    never_kept = total.copy()
    never_kept[offsets[part] : offsets[part + 1]] = 0.0
    never_kept[ranking] = 0.0
    asked = np.array([never_kept[start:stop].sum() for start, stop in pairwise(offsets)])
    # Summed from the worst rank upwards: differences of two large sums would leave crumbs where nothing is asked for.
    rows = np.empty((len(kept), num_parts))
    cuts = np.unique(kept)
    for start, stop in reversed(list(pairwise([*cuts.tolist(), len(ranking)]))):
        ids = ranking[start:stop]
        owners = np.searchsorted(offsets, ids, side="right") - 1
        asked = asked + np.bincount(owners, weights=total[ids], minlength=num_parts)
        rows[kept == start] = asked
    return steps * rows


def least_that_suffices(cost: npt.ArrayLike, *, tolerance: float) -> int:
    """Position of the first point of a cost curve that is at most ``(1 + tolerance)`` times its least."""
    y = np.asarray(cost, dtype=np.float64)
    return int((y <= (1.0 + tolerance) * y.min()).argmax())
