"""What the order of vertices inside the parts of a store was made for, and whether it fits a run.

The manifest of a store keeps it in its metadata::

    "order": {"by": "vip", "fanouts": [15, 10, 5], "batch_size": 1024, "seed_order": "global"}
    "order": {"by": "original"}        the user's order; so it is too where the key is missing
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from windrow.comm.errors import StoreError
from windrow.partition.manifest import CURE
from windrow.partition.options import VertexOrderName

__all__ = ["ORDER_KEY", "VertexOrder", "check_vertex_order", "order_from_metadata", "order_to_metadata"]

ORDER_KEY = "order"
"""Where the metadata of a store has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
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
    """What a manifest keeps.

    Args:
        order: None for the user's order.

    Returns:
        Plain values, for JSON.
    """
    if order is None:
        return {"by": "original"}
    return {
        "by": order.by,
        "fanouts": list(order.fanouts),
        "batch_size": order.batch_size,
        "seed_order": order.seed_order,
    }


def order_from_metadata(metadata: Mapping[str, Any], *, store: Path) -> VertexOrder | None:
    """The order of a store.

    Args:
        metadata: of the store.
        store: its folder, for messages.

    Returns:
        None for the user's order, that of stores that say nothing too.

    Raises:
        StoreError: the entry is not one that this version writes.
    """
    found: Any = metadata.get(ORDER_KEY, {"by": "original"})
    if found == {"by": "original"}:
        return None
    if not _is_order(found):
        raise StoreError(f"{store} names an order of its vertices that is none, {found!r}: {CURE}")
    return VertexOrder(
        fanouts=tuple(found["fanouts"]), batch_size=found["batch_size"], seed_order=found["seed_order"]
    )


def check_vertex_order(
    found: VertexOrder | None,
    *,
    store: Path,
    wanted: VertexOrderName,
    fanouts: Sequence[int],
    batch_size: int,
    gpu_share: float,
) -> None:
    """Refuse a store whose order was made for other minibatches, where the order decides what is kept near.

    That is so where a share of each part's rows, the first ones, is kept in GPU memory. Where all of them are or none
    is, the order is only a matter of layout, and any store is right.

    Args:
        found: the order of the store; None for the user's.
        store: its folder, for messages.
        wanted: `PartitionOptions.order` of the run; "original" is content with any store.
        fanouts: of the run's minibatches.
        batch_size: of the run, over all ranks.
        gpu_share: share of a part's rows that is kept in GPU memory; 1 where there is no GPU.

    Raises:
        StoreError: with both and the cure.
    """
    if wanted == "original" or not 0 < gpu_share < 1:
        return
    if found is not None and found.fanouts == tuple(fanouts) and found.batch_size == batch_size:
        return
    made_for = (
        "in the user's order"
        if found is None
        else f"ordered for sampler.fanouts = {list(found.fanouts)} and training.batch_size = {found.batch_size}"
    )
    raise StoreError(
        f"{store} is {made_for}, but cache.gpu_share = {gpu_share} keeps the rows in GPU memory that are needed most "
        f"with fanouts = {list(fanouts)} and batch_size = {batch_size}: run `windrow partition` again with this recipe "
        'and --overwrite, or set cache.gpu_share to 0 or 1, or partition.order = "original" to take the first rows '
        "whatever they are"
    )


def _is_order(found: Any) -> bool:
    return (
        isinstance(found, Mapping)
        and found.keys() == {"by", "fanouts", "batch_size", "seed_order"}
        and found["by"] == "vip"
        and isinstance(found["fanouts"], list)
        and all(isinstance(fanout, int) for fanout in found["fanouts"])
        and isinstance(found["batch_size"], int)
        and isinstance(found["seed_order"], str)
    )
