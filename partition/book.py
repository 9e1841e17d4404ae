"""Who owns a vertex, what it is called (the user's ids and the ids inside windrow), and how vertices stand in a part.

Parts are contiguous ranges of new ids; inside a part the user's order stays, or vertices of higher priority come first.

    user's ids      0  1  2  3  4  5
    assignment      1  0  1  0  0  1
    new_to_old      1  3  4 | 0  2  5        offsets  0  3  6
    old_to_new      3  0  4  1  2  5
"""

from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError

__all__ = ["PartitionBook"]

Ids = npt.NDArray[np.int64]
Row = TypeVar("Row", bound=np.generic)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartitionBook:
    """The ownership of N vertices by P parts and the two permutations between the user's ids and the new ones."""

    offsets: Ids
    """int64 [P + 1]: part p owns the new ids from offsets[p] to offsets[p + 1]."""
    new_to_old: Ids
    """int64 [N]: the user's id of each new id."""
    old_to_new: Ids
    """int64 [N]: the new id of each of the user's ids."""

    @classmethod
    def from_assignment(
        cls, assignment: npt.NDArray[np.integer], num_parts: int, priority: npt.NDArray[np.floating] | None = None
    ) -> Self:
        """Number the vertices part by part. Cost O(N log N), 24 N bytes.

        Args:
            assignment: integer [N], each vertex's part.
            num_parts: P.
            priority: [N]; inside a part the highest comes first, ties by the user's id. None keeps the user's order.

        Raises:
            DataError: a part is outside [0, P), or `priority` has another length or is not a number somewhere.
        """
        outside = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
        if len(outside):
            raise DataError(
                f"vertex {outside[0]} is assigned to part {assignment[outside[0]]}, expected [0, {num_parts}): "
                "partition the graph again"
            )
        if priority is not None and (len(priority) != len(assignment) or np.isnan(priority).any()):
            raise DataError(
                f"priority has {len(priority)} values, {np.isnan(priority).sum()} of them nan, for {len(assignment)} "
                "vertices: give a number for each vertex"
            )
        new_to_old = np.lexsort((assignment,) if priority is None else (-priority, assignment))
        sizes = np.bincount(assignment, minlength=num_parts)
        old_to_new = np.empty_like(new_to_old)
        old_to_new[new_to_old] = np.arange(len(new_to_old))
        return cls(offsets=np.concatenate([[0], np.cumsum(sizes)]), new_to_old=new_to_old, old_to_new=old_to_new)

    @property
    def num_parts(self) -> int:
        """Number of parts P."""
        return len(self.offsets) - 1

    @property
    def num_vertices(self) -> int:
        """Number of vertices N."""
        return len(self.new_to_old)

    def owner(self, new_ids: npt.NDArray[np.integer]) -> Ids:
        """Part of each new id, int64 of the same shape; the ids in [0, N). Cost O(log P) for each."""
        return np.searchsorted(self.offsets, new_ids, side="right").astype(np.int64) - 1

    def part_range(self, part: int) -> tuple[int, int]:
        """First new id of a part and one past its last."""
        return int(self.offsets[part]), int(self.offsets[part + 1])

    def part_size(self, part: int) -> int:
        """Number of vertices of a part."""
        start, stop = self.part_range(part)
        return stop - start

    def to_original(self, new_ids: npt.NDArray[np.integer]) -> Ids:
        """The user's ids of new ids (any shape)."""
        return np.asarray(self.new_to_old[new_ids], np.int64)

    def to_new(self, old_ids: npt.NDArray[np.integer]) -> Ids:
        """The new ids of the user's ids (any shape)."""
        return np.asarray(self.old_to_new[old_ids], np.int64)

    def restore(self, rows_in_new_order: npt.NDArray[Row]) -> npt.NDArray[Row]:
        """Bring rows, for example predictions, [N, ...] by new id, back into the user's order; a copy."""
        return rows_in_new_order[self.old_to_new]
