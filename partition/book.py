"""Who owns a vertex, what it is called (the user's ids and the ids inside windrow), and how vertices stand in a part.

Parts are contiguous ranges of new ids; inside a part the user's order stays, or vertices of higher priority come first.

    user's ids      0  1  2  3  4  5
    assignment      1  0  1  0  0  1
    new_to_old      1  3  4 | 0  2  5        offsets  0  3  6
    old_to_new      3  0  4  1  2  5

What the order was made for decides whether it fits a run. The manifest of a store keeps it in its metadata::

    "order": {"by": "vip", "fanouts": [15, 10, 5], "batch_size": 1024, "seed_order": "global"}
    "order": {"by": "original"}        the user's order; so it is too where the key is missing
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.options import checked_dataclass
from windrow.partition.manifest import CURE
from windrow.partition.options import VertexOrderName

__all__ = [
    "ORDER_KEY",
    "PartitionBook",
    "VertexOrder",
    "check_vertex_order",
    "order_from_metadata",
    "order_to_metadata",
]

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


ORDER_KEY = "order"
"""Where the metadata of a store has it."""


@checked_dataclass
class VertexOrder:
    """Vertices of a part by descending probability of being needed, in minibatches made like this."""

    by: Literal["vip"] = "vip"
    """What they are ranked by: `windrow.caching.vip`."""
    fanouts: tuple[int, ...]
    """Neighbours sampled per vertex at each hop, from the seeds outwards; -1 for all."""
    batch_size: int
    """Seeds per step, over all ranks."""
    seed_order: str
    """How seeds are shuffled, "global" or "local". Kept for people: probabilities are the same for both."""


def order_to_metadata(order: VertexOrder | None) -> dict[str, Any]:
    """What a manifest keeps, as plain values for JSON; None is the user's order."""
    return {"by": "original"} if order is None else {**asdict(order), "fanouts": list(order.fanouts)}


def order_from_metadata(metadata: Mapping[str, Any], *, store: Path) -> VertexOrder | None:
    """The order of a store, from its metadata; None for the user's order, that of stores that say nothing too.

    Raises:
        StoreError: the entry is not one that this version writes; names the folder `store`.
    """
    found: Any = metadata.get(ORDER_KEY, {"by": "original"})
    if found == {"by": "original"}:
        return None
    try:
        return VertexOrder(**found)
    except (RecipeError, TypeError) as error:
        raise StoreError(f"{store} names an order of its vertices that is none, {found!r}: {CURE}") from error


def check_vertex_order(
    found: VertexOrder | None,
    *,
    store: Path,
    wanted: VertexOrderName,
    fanouts: Sequence[int],
    batch_size: int,
    gpu_share: float,
) -> None:
    """Refuse a store whose order was made for other minibatches: StoreError with both and the cure.

    The order counts where the first rows of each part alone are in GPU memory, a share `gpu_share` of them; elsewhere,
    and where `wanted`, `PartitionOptions.order` of the run, is "original", it is only a matter of layout. `fanouts` and
    `batch_size`, over all ranks, are the run's; `store` is the folder, for messages.
    """
    if wanted == "original" or not 0 < gpu_share < 1:
        return
    made_for = "in the user's order"
    if found is not None:
        if (found.fanouts, found.batch_size) == (tuple(fanouts), batch_size):
            return
        made_for = f"ordered for sampler.fanouts = {list(found.fanouts)} and training.batch_size = {found.batch_size}"
    raise StoreError(
        f"{store} is {made_for}, but cache.gpu_share = {gpu_share} keeps the rows in GPU memory that are needed most "
        f"with fanouts = {list(fanouts)} and batch_size = {batch_size}: run `windrow partition` again with this recipe "
        'and --overwrite, or set cache.gpu_share to 0 or 1, or partition.order = "original" to take the first rows '
        "whatever they are"
    )
