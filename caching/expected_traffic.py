"""How many rows a rank asks other ranks for, before anything is trained.

A vertex that is among the input rows of a minibatch with probability p (`windrow.caching.vip`) is so in ``steps * p``
minibatches of an epoch, in expectation and whatever else is sampled. So the rows that travel are a sum over the remote
vertices that are not kept, and a curve over the number of rows kept is a sum from the worst ranked vertex upwards::

    ranking   best [ 7  2  9  4 ] worst       total  .9 .5 .2 .1        steps 10
    kept                  0    1    2    3    4
    rows an epoch        17    8    3    1    0
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["expected_remote_rows"]


def expected_remote_rows(
    total: npt.NDArray[np.float64],
    ranking: npt.NDArray[np.int64],
    offsets: Sequence[int],
    part: int,
    capacities: npt.ArrayLike,
    *,
    steps: int,
) -> npt.NDArray[np.float64]:
    """Rows that a part asks each owner for in an epoch, for several sizes of its cache.

    Args:
        total: float64 [N], probability of each vertex to be among the input rows of one minibatch of the part.
        ranking: int64 [n], remote vertices, the one that is kept first at the front, none twice. Vertices that are not
            in it are never kept.
        offsets: [parts + 1], part p owns the ids offsets[p] .. offsets[p + 1] - 1.
        part: whose minibatches.
        capacities: integers [C] in any order, rows kept; more than n keeps n.
        steps: minibatches in an epoch.

    Returns:
        float64 [C, parts]; the part's own column is 0. Never more for a larger capacity, and exactly 0 where every
        vertex that can be asked for is kept.

    Cost:
        One pass over the vertices and one over the ranking.
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
