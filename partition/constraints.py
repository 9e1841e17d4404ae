"""What every part must have: its share of the vertex weights of multi-constraint partitioning, and a training vertex.

SALIENT++ (Kaler et al., Communication-efficient graph neural networks with probabilistic neighborhood expansion
analysis and caching, MLSys 2023) balances four weights, the default here:

    train       1 for a training vertex
    validation  1 for a validation vertex
    other       1 for a vertex that is neither
    degree      number of in-neighbours: memory and work of the part's topology
    vertices    1 for every vertex (for graphs without a split)

The last step of every partitioner is `ensure_members`: no part without a vertex, none without a training vertex.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError

__all__ = [
    "CONSTRAINTS",
    "SALIENT_CONSTRAINTS",
    "check_constraint_names",
    "check_members",
    "ensure_members",
    "stack_weights",
    "vertex_roles",
    "vertex_weights",
    "weigh_parts",
]

CONSTRAINTS = ("train", "validation", "other", "degree", "vertices")
SALIENT_CONSTRAINTS = ("train", "validation", "other", "degree")
TRAIN, VALIDATION, OTHER = 0, 1, 2

Ids = npt.NDArray[np.integer]


def check_constraint_names(balance: Sequence[str]) -> None:
    """Refuse names that are unknown or repeated: RecipeError with the names and the known ones."""
    if len({*balance} & {*CONSTRAINTS}) != len(balance):
        raise RecipeError(f"balance = {list(balance)}: expected different names of {', '.join(CONSTRAINTS)}")


def vertex_roles(num_vertices: int, train_ids: Ids | None, validation_ids: Ids | None) -> npt.NDArray[np.uint8]:
    """Say of each vertex whether it is for training (0), for validation (1) or neither (2), uint8 [N].

    Raises:
        DataError: an id is outside [0, N), or a vertex is in both.
    """
    roles = np.full(num_vertices, OTHER, np.uint8)
    for name, ids, role in (("validation", validation_ids, VALIDATION), ("training", train_ids, TRAIN)):
        if ids is None or len(ids) == 0:
            continue
        outside = np.flatnonzero((ids < 0) | (ids >= num_vertices))
        if len(outside):
            row = int(outside[0])
            raise DataError(
                f"{name} id {ids[row]} at row {row} is outside [0, {num_vertices}); remove it from the split"
            )
        both = ids[roles[ids] != OTHER]
        if len(both):
            raise DataError(f"vertex {both[0]} is both a training and a validation vertex; keep it in one of the two")
        roles[ids] = role
    return roles


def vertex_weights(
    indptr: npt.NDArray[np.int64],
    *,
    train_ids: Ids | None = None,
    validation_ids: Ids | None = None,
    balance: Sequence[str] = SALIENT_CONSTRAINTS,
) -> dict[str, npt.NDArray[np.int32]]:
    """The weights [N] that the partitioners balance, by the names in `balance`, without those of no weight.

    `indptr` int64 [N + 1] is that of the graph in CSC form. Memory 4 N C bytes. Where none has a weight, "vertices" is.

    Raises:
        RecipeError: an unknown or repeated name.
        DataError: an id is outside [0, N), or a vertex is in both sets.
    """
    check_constraint_names(balance)
    roles = vertex_roles(len(indptr) - 1, train_ids, validation_ids)
    numbers = {"train": TRAIN, "validation": VALIDATION, "other": OTHER}
    ones = {"vertices": np.ones(len(roles), np.int32)}
    weights = {}
    for name in balance:
        column = np.diff(indptr) if name == "degree" else roles == numbers[name] if name in numbers else ones[name]
        if column.any():
            weights[name] = column.astype(np.int32)
    return weights or ones


def stack_weights(weights: dict[str, npt.NDArray[np.int32]], names: Sequence[str]) -> npt.NDArray[np.int32]:
    """Weights of some names as columns [N, C], zeros where a name has none.

    They leave the dictionary one after another, so that no more than one of them is in memory twice at the end.
    """
    columns = np.zeros((len(next(iter(weights.values()))), len(names)), np.int32)
    for place, name in enumerate(names):
        if name in weights:
            columns[:, place] = weights.pop(name)
    return columns


def weigh_parts(
    vertex_weights: npt.NDArray[np.int32], assignment: npt.NDArray[np.int32], num_parts: int
) -> npt.NDArray[np.int64]:
    """Sum the weights [N, C] of the vertices of each part, int64 [num_parts, C]. Cost O(N C)."""
    sums = [np.bincount(assignment, column, num_parts) for column in vertex_weights.T]
    return np.stack(sums, axis=1).astype(np.int64)


MAX_CANDIDATES = 10_000


def ensure_members(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.integer],
    assignment: npt.NDArray[np.int32],
    num_parts: int,
    *,
    train_ids: Ids | None,
) -> npt.NDArray[np.int32]:
    """Give every part at least one training vertex, or one vertex where there are no training ids.

    A part without one gets, from the part that holds the most, the one with the most in-neighbours in the part
    (of the first MAX_CANDIDATES). `assignment` is left as it is; `check_members` has said that there are enough.
    Cost O(N), and O(edges of the candidates) for each part that lacks one.
    """
    members = np.arange(len(assignment)) if train_ids is None else np.unique(train_ids)
    repaired = assignment.copy()
    for part in np.flatnonzero(np.bincount(repaired[members], minlength=num_parts) == 0):
        donor = int(np.bincount(repaired[members], minlength=num_parts).argmax())
        candidates = members[repaired[members] == donor][:MAX_CANDIDATES]
        ties = [int((repaired[indices[indptr[v] : indptr[v + 1]]] == part).sum()) for v in candidates]
        repaired[candidates[int(np.argmax(ties))]] = part
    return repaired


def check_members(num_vertices: int, num_parts: int, *, num_training: int | None) -> None:
    """Refuse more parts than there are vertices, or training vertices, to give them: DataError."""
    what, cure, available = "vertices", "", num_vertices
    if num_training is not None:
        what, cure, available = "training vertices", " or a larger training set", num_training
    if available < num_parts:
        raise DataError(
            f"{available} {what} cannot be spread over {num_parts} parts, each needs at least one: "
            f"use at most {max(available, 1)} parts{cure}"
        )
