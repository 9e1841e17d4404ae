"""The last step of every partitioner: no part without a vertex, none without a training vertex."""

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["check_members", "ensure_members"]

MAX_CANDIDATES = 10_000


def ensure_members(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    assignment: npt.NDArray[np.int32],
    num_parts: int,
    *,
    train_ids: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.int32]:
    """Give every part at least one training vertex, or one vertex where there are no training ids.

    A part without one gets, from the part that holds the most, the one with the most in-neighbours in the part
    (of the first MAX_CANDIDATES).

    Args:
        indptr: int64 [N + 1], CSC.
        indices: integer [E].
        assignment: int32 [N]; left as it is.
        num_parts: number of parts.
        train_ids: integer [T], or None when the graph is not for training.

    Returns:
        int32 [N]; the same values when nothing was missing. Cost O(N), and O(edges of the candidates) for each
        part that lacks one.

    Raises:
        DataError: fewer (training) vertices than parts.
    """
    check_members(len(assignment), num_parts, train_ids=train_ids)
    members = np.arange(len(assignment)) if train_ids is None else np.unique(train_ids)
    repaired = assignment.copy()
    for part in np.flatnonzero(np.bincount(repaired[members], minlength=num_parts) == 0):
        donor = int(np.bincount(repaired[members], minlength=num_parts).argmax())
        candidates = members[repaired[members] == donor][:MAX_CANDIDATES]
        ties = [int((repaired[indices[indptr[v] : indptr[v + 1]]] == part).sum()) for v in candidates]
        repaired[candidates[int(np.argmax(ties))]] = part
    return repaired


def check_members(
    num_vertices: int, num_parts: int, *, train_ids: npt.NDArray[np.integer] | None = None
) -> None:
    """Refuse more parts than there are vertices, or training vertices, to give them.

    Args:
        num_vertices: N.
        num_parts: number of parts.
        train_ids: integer [T], or None when the graph is not for training.

    Raises:
        DataError: fewer (training) vertices than parts.
    """
    what, cure = "vertices", ""
    available = num_vertices
    if train_ids is not None:
        what, cure, available = "training vertices", " or a larger training set", len(np.unique(train_ids))
    if available < num_parts:
        raise DataError(
            f"{available} {what} cannot be spread over {num_parts} parts, each needs at least one: "
            f"use at most {max(available, 1)} parts{cure}"
        )
