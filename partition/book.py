"""Who owns a vertex, and what it is called: the user's ids and the ids inside windrow.

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
        cls,
        assignment: npt.NDArray[np.integer],
        num_parts: int,
        priority: npt.NDArray[np.floating] | None = None,
    ) -> Self:
        """Number the vertices part by part.

        Args:
            assignment: integer [N], each vertex's part.
            num_parts: number of parts P.
            priority: floating point [N]; inside a part the highest comes first, ties by the user's id. None keeps
                the user's order.

        Returns:
            The book. Cost O(N log N), 24 N bytes.

        Raises:
            DataError: a part is outside [0, P), or `priority` has another length or is not a number somewhere.
        """
        outside = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
        if len(outside):
            vertex = int(outside[0])
            raise DataError(
                f"vertex {vertex} is assigned to part {assignment[vertex]}, expected [0, {num_parts}): "
                "partition the graph again"
            )
        if priority is not None:
            _check_priority(priority, len(assignment))
        keys = (assignment,) if priority is None else (-priority, assignment)
        new_to_old = np.lexsort(keys)
        sizes = np.bincount(assignment, minlength=num_parts)
        return cls.from_permutation(new_to_old, np.concatenate([[0], np.cumsum(sizes)]))

    @classmethod
    def from_permutation(cls, new_to_old: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer]) -> Self:
        """Build a book from what a store keeps.

        Args:
            new_to_old: integer [N], a permutation.
            offsets: integer [P + 1], rising from 0 to N.

        Returns:
            The book.

        Raises:
            DataError: `new_to_old` is no permutation, or `offsets` does not rise from 0 to N.
        """
        num_vertices = len(new_to_old)
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != num_vertices or (np.diff(offsets) < 0).any():
            raise DataError(
                f"part offsets {list(offsets)} must rise from 0 to {num_vertices}: partition again"
            )
        old_to_new = np.full(num_vertices, -1, np.int64)
        inside = (new_to_old >= 0) & (new_to_old < num_vertices)
        old_to_new[new_to_old[inside]] = np.flatnonzero(inside)
        if (old_to_new < 0).any():
            missing = int(np.flatnonzero(old_to_new < 0)[0])
            raise DataError(f"the new vertex order leaves out vertex {missing}: partition the graph again")
        return cls(
            offsets=np.asarray(offsets, np.int64),
            new_to_old=np.asarray(new_to_old, np.int64),
            old_to_new=old_to_new,
        )

    @property
    def num_parts(self) -> int:
        """Number of parts P."""
        return len(self.offsets) - 1

    @property
    def num_vertices(self) -> int:
        """Number of vertices N."""
        return len(self.new_to_old)

    def owner(self, new_ids: npt.NDArray[np.integer]) -> Ids:
        """Part of each new id.

        Args:
            new_ids: integer array of any shape, values in [0, N).

        Returns:
            int64 array of the same shape. Cost O(log P) for each id.
        """
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
        """Bring rows, for example predictions, back into the user's order.

        Args:
            rows_in_new_order: [N, ...], row i belongs to new id i.

        Returns:
            [N, ...], row i belongs to the user's vertex i; a copy.
        """
        return rows_in_new_order[self.old_to_new]

    def assignment(self) -> npt.NDArray[np.int32]:
        """int32 [N]: the part of each of the user's vertices."""
        return self.owner(self.old_to_new).astype(np.int32)


def _check_priority(priority: npt.NDArray[np.floating], num_vertices: int) -> None:
    if len(priority) != num_vertices:
        raise DataError(
            f"priority has {len(priority)} values for {num_vertices} vertices: give one for each vertex"
        )
    # Sorting would put them last without a word.
    missing = np.flatnonzero(np.isnan(priority))
    if len(missing):
        raise DataError(f"the priority of vertex {missing[0]} is nan: give every vertex a number")
